/* Tables: sorted by clicking a column header, filtered by an input, saved as CSV. */
(() => {
  "use strict";
  const compare = (a, b) => {
    if (a === b) return 0;
    if (a === null) return 1;
    if (b === null) return -1;
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.value;
    if (text === undefined) return null;
    if (cell.dataset.type !== "number") return text;
    const number = Number({ inf: "Infinity", "-inf": "-Infinity" }[text] ?? text);
    return Number.isNaN(number) ? null : number;
  };
  const sort = (head) => {
    const table = head.closest("table");
    const column = head.cellIndex;
    const now = head.getAttribute("aria-sort");
    const rows = [...table.tBodies[0].rows];
    const numeric = rows.some((row) => row.cells[column].dataset.type === "number");
    const next = now === "none" ? (numeric ? "descending" : "ascending") : now === "ascending" ? "descending" : "ascending";
    for (const other of table.tHead.rows[0].cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    const keyed = rows.map((row) => [valueOf(row, column), row]);
    // cells without a value stay last in both directions
    keyed.sort(([a], [b]) => (a === null || b === null ? compare(a, b) : sign * compare(a, b)));
    table.tBodies[0].append(...keyed.map(([, row]) => row));
  };
  for (const button of document.querySelectorAll("table.sortable button.sort")) {
    button.addEventListener("click", () => sort(button.closest("th")));
  }

  const { field, save } = ntkscope;
  const csv = (table) => {
    const heads = [...table.tHead.rows[0].cells].filter((head) => head.dataset.column !== undefined);
    const lines = [heads.map((head) => field(head.textContent, false)).join(",")];
    for (const row of table.tBodies[0].rows) {
      if (row.hidden) continue;
      const cells = heads.map((head) => row.cells[head.cellIndex]);
      lines.push(cells.map((cell) => field(cell.dataset.value, cell.dataset.type === "number")).join(","));
    }
    return lines.join("\r\n") + "\r\n";
  };
  for (const button of document.querySelectorAll("button[data-export]")) {
    button.addEventListener("click", () => {
      const table = button.closest(".exportable").querySelector("table");
      save(button.dataset.export, `\ufeff${csv(table)}`, "text/csv;charset=utf-8");
    });
  }

  for (const input of document.querySelectorAll("input[data-filter]")) {
    const table = document.getElementById(input.dataset.filter);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
  }
})();
