"""Pure functions from data to data: shifted images, triggers, wrong labels, one class against the rest. Each says what it
did in the extras."""

from ntkscope.data.transforms.badnets import Trigger, badnets, stamp
from ntkscope.data.transforms.label_noise import label_noise
from ntkscope.data.transforms.one_vs_rest import one_vs_rest
from ntkscope.data.transforms.translation import translate

__all__ = ["Trigger", "badnets", "label_noise", "one_vs_rest", "stamp", "translate"]
