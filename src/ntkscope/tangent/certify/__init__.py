"""Every block is compared with plain autograd before it is used, and slower exact methods follow where it differs."""
