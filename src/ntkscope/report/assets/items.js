/* Items: thumbnails, names, and the panel of one training item; shared by the explorer and the review. */
const ntkscope = (() => {
  "use strict";
  const holder = document.getElementById("data-items");
  const data = holder ? JSON.parse(holder.textContent) : { classes: [], columns: 32, shown: [], train: {} };
  const className = (k) => data.classes[k] ?? String(k);

  // Elements are made from text, never from markup: a class name is shown, never parsed.
  const make = (name, properties = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
      if (value === null || value === undefined || value === false) continue;
      if (key === "style") Object.assign(element.style, value);
      else if (key === "vars") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
      else element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };
  const name = (k, more = "") => make("bdi", { class: `class ${more}`.trim() }, className(k));
  const shown = (value, digits = 3) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1000 && size < 1e7) return counted(Math.round(value)).replaceAll("-", "−");
    return (size < 1e-3 || size >= 1e6 ? value.toExponential(1) : value.toPrecision(digits)).replaceAll("-", "−");
  };
  const counted = (n) => n.toLocaleString("en-US");
  const percent = (value, digits = 1) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const close = value > 0.9995 && value < 1;
    return close ? "> 99.9 %" : `${(100 * value).toFixed(digits)} %`;
  };
  const thumb = (part, slot, said) =>
    make("span", {
      class: `thumb ${part}`, role: "img", "aria-label": said,
      vars: { "--x": slot % data.columns, "--y": Math.floor(slot / data.columns) },
    });
  const places = new Map(data.shown.map((index, place) => [index, place])); // of the items that the page shows
  const train = (index) => {
    const place = places.get(index);
    const [slot, text, id] = ["slot", "text", "id"].map((key) => (place === undefined ? null : data[key][place]));
    const [label, target, number, score, suggested, share] = ["label", "target", "number", "score", "suggested", "share"].map((key) => data.train[key]?.[index] ?? null);
    return { slot, text, id, label, target, number: number ?? index, score, suggested, share, doubtful: score > 0 };
  };

  // a training item as picture, text or number, whichever it has
  const picture = (index) => {
    const item = train(index);
    if (item.slot !== null) return thumb("train", item.slot, `training item ${item.number}`);
    return item.text === null ? make("span", { class: "ordinal" }, `#${item.number}`) : make("bdi", { class: "quote" }, item.text);
  };

  // several training items with what each is worth; `expected`: the label the others differ from
  const shelf = (title, pairs, { expected = null, worth = shown } = {}) => {
    const worded = pairs.some(([index]) => train(index).slot === null && train(index).text);
    const tiles = pairs.map(([index, value]) => {
      const item = train(index);
      const other = expected !== null && item.label !== null && item.label !== expected;
      const said = `training item ${item.number}${item.label === null ? "" : `, labelled ${className(item.label)}`}${item.doubtful ? ", a doubtful label" : ""}: ${worth(value)}`;
      return make("li", { class: [other ? "other" : "", item.doubtful ? "doubtful" : ""].join(" ").trim() || null, "data-tip": worded ? null : said },
        make("a", { href: `#train-${item.number}`, class: "to-item", "aria-label": said }, picture(index)),
        item.label === null ? null : name(item.label),
        item.doubtful ? make("span", { class: "flag" }, "doubtful") : null,
        make("span", { class: "worth" }, worth(value)));
    });
    return make("div", { class: "shelf" }, title === null ? null : make("h4", {}, title),
      make("ul", { class: `tiles-of-items${worded ? " worded" : ""}` }, ...tiles));
  };

  // the panel of one training item
  const panel = document.getElementById("train-item");
  const numbers = new Map([...data.shown, ...(data.train.number ?? data.train.label ?? []).keys()].map((index) => [train(index).number, index]));
  const row = (term, ...value) => make("div", {}, make("dt", {}, term), make("dd", {}, ...value));
  const open = (number) => {
    const body = document.getElementById("train-item-body");
    const index = numbers.get(number);
    if (index === undefined) {
      const where = data.scores ? ` Its scores are in ${data.scores}, beside this page.` : "";
      body.replaceChildren(make("h3", {}, `Training item ${number}`), make("p", {}, `This page does not show this item.${where}`));
    } else {
      const item = train(index);
      const facts = [item.label === null ? null : row("Label", name(item.label))];
      if (item.target) facts.push(row("Target", item.target.slice(0, 10).map((value) => shown(value)).join(", ")));
      if (item.id !== null) facts.push(row("Id", make("code", {}, item.id)));
      if (item.score !== null) facts.push(row("Label score", `${shown(item.score)} (above 0: contradicted by the other items)`));
      if (item.doubtful && item.suggested !== null) facts.push(row("Suggested", name(item.suggested)));
      if (item.share !== null) facts.push(row("Share in all predictions", percent(item.share, 2)));
      body.replaceChildren(make("h3", {}, `Training item ${item.number}`), make("div", { class: "large" }, picture(index)),
        make("dl", { class: "terms" }, ...facts.filter(Boolean)));
    }
    try { panel.showPopover(); } catch { panel.scrollIntoView(); }
  };
  const follow = () => {
    const found = /^#train-(\d+)$/.exec(location.hash);
    if (found && panel) open(Number(found[1]));
  };
  addEventListener("hashchange", follow);
  // the same link again leaves the address as it is, so it is followed here
  addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest('a[href^="#train-"]') : null;
    if (link && link.getAttribute("href") === location.hash) follow();
  });
  addEventListener("DOMContentLoaded", follow);

  const save = (file, text, type) => {
    const address = URL.createObjectURL(new Blob([text], { type }));
    const link = document.createElement("a");
    link.href = address;
    link.download = file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  };
  // A spreadsheet would evaluate a text that starts like a formula: such a text gets an apostrophe in front.
  const field = (value, number = typeof value === "number") => {
    let text = value === null || value === undefined ? "" : String(value);
    if (!number && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  // the text of a help popover is that of the value it was opened from
  for (const button of document.querySelectorAll("button.help[popovertarget]")) {
    button.addEventListener("click", () => {
      const said = document.getElementById(`${button.getAttribute("popovertarget")}-said`);
      if (said) said.textContent = button.dataset.tip;
    });
  }
  return { className, counted, field, make, name, percent, picture, save, shelf, shown, thumb, train };
})();
