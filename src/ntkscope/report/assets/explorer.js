/* The explorer: a list of test items; the chosen one's attribution, its distribution, and its neighbours. */
(() => {
  "use strict";
  const list = document.getElementById("explorer-list");
  const holder = document.getElementById("data-explain");
  if (!list || !holder) return;
  const data = JSON.parse(holder.textContent);
  const options = [...list.querySelectorAll('[role="option"]')];
  const panel = (name) => document.getElementById(`explorer-${name}`);
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
    if (value === null || value === undefined) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1000 && size < 1e7) return Math.round(value).toLocaleString("en-US").replaceAll("-", "−");
    return (size < 1e-3 || size >= 1e6 ? value.toExponential(1) : value.toPrecision(digits)).replaceAll("-", "−");
  };
  const percent = (value, digits = 1) => {
    if (value === null || value === undefined) return "–";
    const close = value > 0.9995 && value < 1;
    return close ? "> 99.9 %" : `${(100 * value).toFixed(digits)} %`;
  };
  const thumb = (part, slot, said) =>
    make("span", {
      class: `thumb ${part}`, role: "img", "aria-label": said,
      vars: { "--x": slot % data.columns, "--y": Math.floor(slot / data.columns) },
    });

  // one width for the names of all rows: as long as the longest, within reason
  const longest = Math.max(1, ...data.classes.map((text) => text.length));
  document.getElementById("explorer").style.setProperty("--named", `${Math.min(7, 1.6 + 0.55 * longest)}rem`);

  let current = 0;
  let logit = null;

  const head = (item) => {
    const right = item.network === item.true;
    const position = visible().indexOf(options[current]);
    const verdict = make("p", { class: "soft" }, right ? "which is correct: " : "but it is actually: ", name(item.true));
    verdict.classList.add("truth");
    const who = make(
      "div", { class: "who" },
      item.slot === null ? null : thumb("test", item.slot, `test item ${item.index}`),
      make("div", {},
        make("p", { class: "eyebrow" }, `Test item ${item.index}: the network predicts`),
        make("p", { class: `said verdict-word ${right ? "right" : "wrong"}`, id: "explorer-said" }, name(item.network)),
        verdict,
        item.network === item.predicted ? null : make("p", { class: "soft small" }, "The surrogate predicts ", name(item.predicted), "; that prediction is explained here.")),
    );
    const rows = item.likely.map(([k, p]) =>
      make("div", { class: "row" },
        make("span", { class: `named ${k === item.network ? "predicted" : ""} ${k === item.true ? "true" : ""}`, title: className(k) }, name(k)),
        make("span", { class: "line solid" }, make("i", { class: `plain ${k === item.network ? "predicted" : ""}`, style: { left: 0, width: `${100 * p}%` } }),
          item.surrogate[k] === undefined ? null : make("i", { class: "also", style: { left: `${100 * item.surrogate[k]}%` }, "data-tip": `surrogate: ${percent(item.surrogate[k])}` })),
        make("span", { class: "value" }, percent(p))));
    const step = (by, words, sign) => {
      const button = make("button", { type: "button", class: "action", "aria-label": words }, sign);
      button.addEventListener("click", () => {
        move(by);
        panel("head").querySelector(`button[aria-label="${words}"]`).focus();
      });
      return button;
    };
    panel("head").replaceChildren(
      who,
      item.text === null ? "" : make("bdi", { class: "reading", id: "explorer-text" }, item.text),
      make("div", { class: "rows" }, ...rows),
      Object.keys(item.surrogate).length ? make("p", { class: "soft small" }, "Bars: the network. Ticks: the surrogate.") : "",
      make("div", { class: "pager" }, step(-1, "Previous item", "←"), step(1, "Next item", "→"),
        make("span", { class: "soft small" }, `${position + 1} of ${visible().length}`)),
    );
  };

  const bars = (item) => {
    const offered = Object.keys(item.means).map(Number);
    const chosen = offered.includes(logit) ? logit : item.predicted;
    const means = item.means[chosen] ?? [];
    const low = Math.min(0, ...means.filter((v) => v !== null));
    const high = Math.max(0, ...means.filter((v) => v !== null));
    const at = (v) => (high > low ? (100 * (v - low)) / (high - low) : 0);
    const select = make("select", { id: "explorer-logit" }, ...offered.sort((a, b) => a - b).map((k) => {
      const option = make("option", { value: k }, className(k));
      option.selected = k === chosen;
      return option;
    }));
    select.addEventListener("change", () => {
      logit = Number(select.value);
      bars(item);
      document.getElementById("explorer-logit").focus();
    });
    const rows = item.classes.map((c, n) => {
      const v = means[n];
      const line = make("span", { class: "line" }, make("i", { class: "zero", style: { left: `${at(0)}%` } }));
      if (v !== null && v !== undefined) {
        const left = Math.min(at(0), at(v));
        line.append(make("i", { class: v >= 0 ? "for" : "against", style: { left: `${left}%`, width: `${Math.abs(at(v) - at(0))}%` } }));
      }
      return make("div", { class: "row", "data-tip": `a training item labelled ${className(c)} adds ${shown(v)} on average` },
        make("span", { class: `named ${c === item.predicted ? "predicted" : ""} ${c === item.true ? "true" : ""}`, title: className(c) }, name(c)),
        line, make("span", { class: "value" }, shown(v, 2)));
    });
    panel("bars").replaceChildren(
      make("h3", {}, "Support by class"),
      make("p", { class: "soft small" }, "Mean contribution of one training item of each class to the logit of ", select),
      make("div", { class: "rows", id: "explorer-rows" }, ...rows));
  };

  const boxes = (item) => {
    const inner = item.box.flat().filter((v) => v !== null);
    const values = [...inner, ...item.outliers.map(([, v]) => v), 0];
    const low = Math.min(...values);
    const high = Math.max(...values);
    const at = (v) => (high > low ? (100 * (v - low)) / (high - low) : 50);
    const rows = item.classes.map((c, n) => {
      const line = make("span", { class: "line" }, make("i", { class: "zero", style: { left: `${at(0)}%` } }));
      const box = item.box[n];
      let said = "no training items";
      if (box && box.every((v) => v !== null)) {
        const [a, q1, median, q3, b] = box;
        line.append(
          make("i", { class: "whisker", style: { left: `${at(a)}%`, width: `${at(b) - at(a)}%` } }),
          make("i", { class: "box", style: { left: `${at(q1)}%`, width: `${at(q3) - at(q1)}%` } }),
          make("i", { class: "median", style: { left: `${at(median)}%` } }));
        said = `median ${shown(median)}, half of them between ${shown(q1)} and ${shown(q3)}`;
      }
      for (const [index, v] of item.outliers) {
        if (data.train[index]?.label !== c) continue;
        line.append(make("i", { class: "outlier", style: { left: `${at(v)}%` }, "data-tip": `training item ${index}, labelled ${className(c)}: ${shown(v)}` }));
      }
      return make("div", { class: `row wide-track ${c === item.predicted ? "predicted-row" : ""}`, "data-tip": `${className(c)}: ${said}` },
        make("span", { class: `named ${c === item.predicted ? "predicted" : ""} ${c === item.true ? "true" : ""}`, title: className(c) }, name(c)), line);
    });
    const share = item.concentration;
    panel("box").replaceChildren(
      make("h3", {}, "How the support is distributed"),
      make("p", { class: "soft small" }, "Contributions of individual training items to the predicted logit; dots are the largest outliers."),
      make("div", { class: "rows" }, ...rows),
      make("div", { class: "scale" }, make("span", {}, shown(low, 2)), make("span", {}, shown(high, 2))),
      share ? make("p", { class: "soft small" }, `The five strongest items contribute ${percent(share[0])} of the total${data.count ? `; the support is as spread out as if ${Math.max(1, Math.round(share[2] * data.count)).toLocaleString("en-US")} of ${data.count.toLocaleString("en-US")} contributed equally` : ""}.`) : "");
  };

  const shelf = (title, pairs, item) => {
    const worded = pairs.some(([index]) => data.train[index]?.text);
    const tiles = pairs.map(([index, value]) => {
      const known = data.train[index] ?? { slot: null, label: null, text: null };
      const other = known.label !== null && known.label !== item.predicted;
      const said = `training item ${index}${known.label === null ? "" : `, labelled ${className(known.label)}`}: ${shown(value)}`;
      const picture = known.slot === null ? (known.text === null ? make("span", { class: "ordinal" }, `#${index}`) : make("bdi", { class: "quote" }, known.text)) : thumb("train", known.slot, `training item ${index}`);
      return make("li", { class: other ? "other" : null, "data-tip": worded ? null : said },
        picture, known.label === null ? null : name(known.label), make("span", { class: "worth" }, shown(value)));
    });
    return make("div", { class: "shelf" }, title === null ? null : make("h4", {}, title),
      make("ul", { class: `tiles-of-items${worded ? " worded" : ""}` }, ...tiles));
  };

  const shelves = (item) => {
    panel("top").replaceChildren(
      make("h3", {}, "Training points that support this prediction"),
      make("p", { class: "soft small" }, `Training items with the largest contributions to the predicted logit (surrogate: ${data.main}). Dashed: a different label.`),
      shelf(null, item.top, item));
    panel("nearest").replaceChildren(
      make("h3", {}, "Most similar training items, by kernel"),
      make("div", { class: "shelves" }, ...data.kernels.map((kernel) => shelf(kernel, item.nearest[kernel] ?? [], item))));
  };

  const visible = () => options.filter((option) => !option.hidden);

  const choose = (n, { scroll = true } = {}) => {
    if (n !== current) logit = null;
    options[current].setAttribute("aria-selected", "false");
    current = n;
    const option = options[n];
    option.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", option.id);
    if (scroll) {
      const top = option.offsetTop - list.offsetTop;
      if (top < list.scrollTop || top + option.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top - 8;
    }
    const item = data.items[n];
    head(item);
    bars(item);
    boxes(item);
    shelves(item);
  };

  const move = (by) => {
    const now = visible();
    if (!now.length) return;
    const place = now.indexOf(options[current]);
    const next = place < 0 ? 0 : Math.max(0, Math.min(now.length - 1, place + by));
    choose(options.indexOf(now[next]));
  };
  // how many items a row of the list holds, for the keys up and down
  const perRow = () => {
    const now = visible();
    const first = now[0]?.offsetTop;
    return Math.max(1, now.filter((option) => option.offsetTop === first).length);
  };
  list.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow(), ArrowUp: -perRow(), Home: -options.length, End: options.length }[event.key];
    if (by === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    move(by);
  });
  list.addEventListener("click", (event) => {
    const option = event.target.closest('[role="option"]');
    if (option) choose(options.indexOf(option));
  });

  const search = panel("search");
  const wrong = panel("wrong");
  const differ = panel("differ");
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const option of options) {
      const found = words.every((word) => option.dataset.find.includes(word));
      option.hidden = !found || (wrong.checked && !option.classList.contains("wrong")) || (differ?.checked && option.dataset.differ === undefined);
    }
    const now = visible();
    panel("count").textContent = now.length === options.length ? "" : now.length ? `${now.length} of ${options.length}` : "nothing found";
    if (now.length && options[current].hidden) choose(options.indexOf(now[0]));
    else if (now.length) head(data.items[current]);
  };
  search.addEventListener("input", filter);
  wrong.addEventListener("change", filter);
  differ?.addEventListener("change", filter);

  // a mark in a scatter plot links here if its item is in the list
  const places = new Map(data.items.map((item, n) => [item.index, n]));
  for (const mark of document.querySelectorAll(".plot .mark[data-item]")) {
    const n = places.get(Number(mark.dataset.item));
    if (n === undefined) mark.removeAttribute("data-item");
    else mark.addEventListener("click", () => {
      choose(n);
      document.getElementById("explorer").scrollIntoView();
    });
  }
  if (options.length) choose(0, { scroll: false });
})();
