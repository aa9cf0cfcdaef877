/* The explorer: a list of test items, of which only those in view are elements; the chosen one's evidence for the chosen class. */
(() => {
  "use strict";
  const list = document.getElementById("explorer-list");
  const holder = document.getElementById("data-explain");
  if (!list || !holder) return;
  const { className, counted, make, name, percent, shelf, shown, thumb, train } = ntkscope;
  const data = JSON.parse(holder.textContent);
  const replay = JSON.parse(document.getElementById("data-replay")?.textContent ?? "null"); // of a few items
  const panel = (part) => document.getElementById(`explorer-${part}`);
  const classes = JSON.parse(document.getElementById("data-items").textContent).classes;
  const TRUST = ["do not trust", "medium", "high"];
  const KINDS = ["bad", "neither", "good"];

  // -- packed numbers: as many characters each, so that any part can be read without the rest ---------------------------------
  const DIGITS = new Map([..."ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"].map((digit, value) => [digit, value]));
  const number = (text, at, size) => {
    let value = 0;
    for (let k = 0; k < size; k += 1) value = 64 * value + DIGITS.get(text[at + k]);
    return value;
  };
  // row n of a packed array
  const of = (packed, n) => {
    if (!packed) return [];
    const { data: text, exponent, shape, size } = packed;
    const count = shape.reduce((a, b) => a * b, 1);
    const none = 64 ** size - 1;
    return Array.from({ length: count }, (_, k) => {
      const code = number(text, size * (n * count + k), size);
      if (exponent === undefined) return code === none ? -1 : code;
      if (code === none) return null;
      const below = (code >> 10) & 127;
      return below === 127 ? 0 : (code >> 17 ? -1 : 1) * (1 + (code & 1023) / 1024) * 2 ** (exponent - 1 - below);
    });
  };
  const pairsOf = (both, n) => {
    if (!both) return [];
    const values = of(both.value, n);
    return of(both.index, n).map((index, k) => [index, values[k]]).filter(([index]) => index >= 0);
  };
  // evidence has a row for every class of every item
  const classesOf = (n) => of(data.evidence.chosen, n).filter((k) => k >= 0);
  const rowOf = [0];
  data.items.forEach((_, n) => rowOf.push(rowOf[n] + classesOf(n).length));

  // one width for the names of all rows: as long as the longest, within reason
  const longest = Math.max(1, ...classes.map((text) => text.length));
  document.getElementById("explorer").style.setProperty("--named", `${Math.min(7, 1.6 + 0.55 * longest)}rem`);

  let current = 0; // place of the item in data.items
  let wanted = null; // the class a reader selected
  let offered = data.items.map((_, n) => n); // places of the items that fit the search

  // everything there is to show of the current item and class
  const look = (n) => {
    const item = data.items[n];
    const chosen = classesOf(n);
    const logit = chosen.includes(wanted) ? wanted : chosen.includes(item.network) ? item.network : chosen[0] ?? item.network;
    const row = rowOf[n] + Math.max(0, chosen.indexOf(logit));
    const rows = data.evidence.shown ? of(data.evidence.shown, row).filter((k) => k >= 0) : [...Array(data.evidence.means.shape[0]).keys()];
    const box = of(data.evidence.box, row);
    return {
      n, item, chosen, logit, rows,
      means: of(data.evidence.means, row),
      box: rows.map((_, r) => box.slice(5 * r, 5 * r + 5)),
      outliers: pairsOf(data.evidence.outliers, row),
      top: pairsOf(data.evidence.top, row),
      influence: pairsOf(data.evidence.influence, row),
      concentration: of(data.evidence.concentration, row),
      surrogate: of(data.evidence.surrogate_logit, row)[0] ?? null,
      network: of(data.evidence.network_logit, row)[0] ?? null,
    };
  };

  const likelyOf = (n) => {
    if (!data.likely) return [];
    const [network, surrogate] = ["network", "surrogate"].map((part) => of(data.likely[part], n));
    return of(data.likely.classes, n).map((c, r) => [c, network[r], surrogate[r] ?? null]).filter(([c]) => c >= 0);
  };

  const head = ({ n, item }) => {
    const right = item.network === item.true;
    const verdict = make("p", { class: "soft" }, right ? "which is correct: " : "but it is actually: ", name(item.true));
    verdict.classList.add("truth");
    const mark = item.trust === null ? null : make("p", { class: "small" }, make("span", { class: `pill ${KINDS[item.trust] ?? "quiet"}`, id: "explorer-trust" }, `trust in this explanation: ${TRUST[item.trust] ?? "unknown"}`));
    const who = make(
      "div", { class: "who" },
      item.slot === null ? null : thumb("test", item.slot, `test item ${item.number}`),
      make("div", {},
        make("p", { class: "eyebrow" }, `Test item ${item.number}: the network predicts`),
        make("p", { class: `said verdict-word ${right ? "right" : "wrong"}`, id: "explorer-said" }, name(item.network)),
        verdict,
        item.id === null ? null : make("p", { class: "soft small" }, make("code", {}, item.id)),
        item.network === item.predicted ? null : make("p", { class: "soft small" }, "The surrogate predicts ", name(item.predicted), ": it does not describe this prediction.")),
    );
    const likely = likelyOf(n);
    const rows = likely.map(([k, p, s]) =>
      make("div", { class: "row" },
        make("span", { class: `named ${k === item.network ? "predicted" : ""} ${k === item.true ? "true" : ""}`, title: className(k) }, name(k)),
        make("span", { class: "line solid" }, make("i", { class: `plain ${k === item.network ? "predicted" : ""}`, style: { left: 0, width: `${100 * p}%` } }),
          s === null ? null : make("i", { class: "also", style: { left: `${100 * s}%` }, "data-tip": `surrogate: ${percent(s)}` })),
        make("span", { class: "value" }, percent(p))));
    const step = (by, words, sign) => {
      const button = make("button", { type: "button", class: "action", "aria-label": words }, sign);
      button.addEventListener("click", () => {
        move(by);
        panel("head").querySelector(`button[aria-label="${words}"]`).focus();
      });
      return button;
    };
    const link = make("a", { href: `#item-${item.number}`, class: "small" }, "link to this item");
    panel("head").replaceChildren(
      who,
      mark ?? "",
      item.text === null ? "" : make("bdi", { class: "reading", id: "explorer-text" }, item.text),
      make("div", { class: "rows" }, ...rows),
      likely.some(([, , s]) => s !== null) ? make("p", { class: "soft small" }, "Bars: the network. Ticks: the surrogate.") : "",
      make("div", { class: "pager" }, step(-1, "Previous item", "←"), step(1, "Next item", "→"),
        make("span", { class: "soft small" }, offered.includes(n) ? `${counted(offered.indexOf(n) + 1)} of ${counted(offered.length)}` : ""), link),
    );
  };

  const selector = (seen) => {
    const { item, chosen, logit } = seen;
    const role = (k) => [k === item.network ? "predicted" : "", k === item.true ? "true" : "", k === item.predicted && k !== item.network ? "surrogate's" : ""].filter(Boolean).join(", ");
    const select = make("select", { id: "explorer-logit" }, ...chosen.map((k) => {
      const option = make("option", { value: k }, role(k) ? `${className(k)} (${role(k)})` : className(k));
      option.selected = k === logit;
      return option;
    }));
    select.addEventListener("change", () => {
      wanted = Number(select.value);
      draw();
      document.getElementById("explorer-logit").focus();
    });
    const known = seen.surrogate !== null && seen.network !== null;
    const facts = known
      ? [["surrogate's logit", seen.surrogate], ["network's logit", seen.network], ["distance", Math.abs(seen.surrogate - seen.network)]].map(([words, value]) =>
        make("span", { class: "fact" }, make("b", {}, shown(value)), ` ${words}`))
      : [];
    const aim = { logits: "fitted to the network's logits", probabilities: "fitted to the network's probabilities", labels: "fitted to the labels" }[data.target] ?? "";
    panel("class").replaceChildren(
      make("label", { for: "explorer-logit" }, "Evidence for the class "), select,
      make("span", { class: "facts-inline", id: "explorer-facts" }, ...facts),
      make("p", { class: "soft small" }, `From the surrogate on ${data.main}, ${aim}.${known ? " Logits are centred over the classes; where the distance is not small beside the logit, the evidence below is not the network's." : ""}`));
  };

  const none = () => make("p", { class: "soft small" }, "This record holds the single items for the surrogate's class only.");

  const bars = ({ item, logit, rows: shownClasses, means }) => {
    const low = Math.min(0, ...means.filter((v) => v !== null));
    const high = Math.max(0, ...means.filter((v) => v !== null));
    const at = (v) => (high > low ? (100 * (v - low)) / (high - low) : 0);
    const rows = shownClasses.map((c, n) => {
      const v = means[n] ?? null;
      const line = make("span", { class: "line" }, make("i", { class: "zero", style: { left: `${at(0)}%` } }));
      if (v !== null) {
        const left = Math.min(at(0), at(v));
        line.append(make("i", { class: v >= 0 ? "for" : "against", style: { left: `${left}%`, width: `${Math.abs(at(v) - at(0))}%` } }));
      }
      return make("div", { class: "row", "data-tip": `a training item labelled ${className(c)} adds ${shown(v)} on average` },
        make("span", { class: `named ${c === logit ? "predicted" : ""} ${c === item.true ? "true" : ""}`, title: className(c) }, name(c)),
        line, make("span", { class: "value" }, shown(v, 2)));
    });
    panel("bars").replaceChildren(
      make("h3", {}, "Decomposition by class"),
      make("p", { class: "soft small" }, "What the surrogate's logit of ", name(logit), " is made of: the mean term of one training item of each class"),
      make("div", { class: "rows", id: "explorer-rows" }, ...rows));
  };

  const boxes = ({ item, logit, rows: shownClasses, box: spread, outliers, concentration: share }) => {
    const inner = spread.flat().filter((v) => v !== null && v !== undefined);
    const values = [...inner, ...outliers.map(([, v]) => v), 0];
    const low = Math.min(...values);
    const high = Math.max(...values);
    const at = (v) => (high > low ? (100 * (v - low)) / (high - low) : 50);
    const rows = shownClasses.map((c, n) => {
      const line = make("span", { class: "line" }, make("i", { class: "zero", style: { left: `${at(0)}%` } }));
      const box = spread[n];
      let said = "no training items";
      if (box.length && box.every((v) => v !== null)) {
        const [a, q1, median, q3, b] = box;
        line.append(
          make("i", { class: "whisker", style: { left: `${at(a)}%`, width: `${at(b) - at(a)}%` } }),
          make("i", { class: "box", style: { left: `${at(q1)}%`, width: `${at(q3) - at(q1)}%` } }),
          make("i", { class: "median", style: { left: `${at(median)}%` } }));
        said = `median ${shown(median)}, half of them between ${shown(q1)} and ${shown(q3)}`;
      }
      for (const [index, v] of outliers) {
        if (train(index).label !== c) continue;
        line.append(make("i", { class: "outlier", style: { left: `${at(v)}%` }, "data-tip": `training item ${train(index).number}, labelled ${className(c)}: ${shown(v)}` }));
      }
      return make("div", { class: `row wide-track ${c === logit ? "predicted-row" : ""}`, "data-tip": `${className(c)}: ${said}` },
        make("span", { class: `named ${c === logit ? "predicted" : ""} ${c === item.true ? "true" : ""}`, title: className(c) }, name(c)), line);
    });
    const known = share.length && share[0] !== null;
    panel("box").replaceChildren(
      make("h3", {}, "How the terms are distributed"),
      make("p", { class: "soft small" }, "Terms of individual training items in this logit; dots are the largest outliers."),
      ...(inner.length ? [make("div", { class: "rows" }, ...rows), make("div", { class: "scale" }, make("span", {}, shown(low, 2)), make("span", {}, shown(high, 2)))] : [none()]),
      known ? make("p", { class: "soft small" }, `The five strongest items contribute ${percent(share[0])} of the total${data.count ? `; the sum is as spread out as if ${counted(Math.max(1, Math.round(share[2] * data.count)))} of ${counted(data.count)} contributed equally` : ""}.`) : "");
  };

  const shelves = ({ n, logit, top, influence }) => {
    panel("top").replaceChildren(
      make("h3", {}, "Training points that support this prediction"),
      make("p", { class: "soft small" }, "The largest terms in the decomposition of the logit of ", name(logit), ". It says what the logit is made of, not what removing a point would do. Dashed: another label."),
      top.length ? shelf(null, top, { expected: logit }) : none());
    panel("influence").hidden = !data.evidence.influence;
    if (data.evidence.influence) {
      panel("influence").replaceChildren(
        make("h3", {}, "What would change without this point"),
        make("p", { class: "soft small" }, "Training points without which ", name(logit), " would score lowest, one left out at a time: the change of a ridge regression on the labels (scores between 0 and 1), which predicts best what retraining the network would do."),
        shelf(null, influence, { expected: logit, worth: (v) => shown(-v) }));
    }
    const place = replay ? replay.items.indexOf(data.items[n].index) : -1;
    panel("replay").hidden = place < 0 || logit !== data.items[n].network;
    if (!panel("replay").hidden) {
      panel("replay").replaceChildren(
        make("h3", {}, "What training itself would have done"),
        make("p", { class: "soft small" }, "Without one of these points, the margin of ", name(logit), ` over the other classes would have fallen most: by replaying every step of the training, and by the kernel. What the kernel says of training on random halves has a rank correlation of ${shown(replay.correlations[place], 2)} with what such trainings did here.`),
        make("div", { class: "shelves" }, ...Object.values(replay.ways).map((way) => shelf(way.name, pairsOf(way, place), { expected: logit, worth: (v) => shown(-v) }))));
    }
    panel("nearest").replaceChildren(
      make("h3", {}, "Most similar training items, by kernel"),
      make("p", { class: "soft small" }, "Dashed: not labelled ", name(logit), "."),
      make("div", { class: "shelves" }, ...data.kernels.map(({ key, name: words }) => shelf(words, pairsOf(data.nearest[key], n), { expected: logit }))));
  };

  const draw = () => {
    const seen = look(current);
    head(seen);
    selector(seen);
    bars(seen);
    boxes(seen);
    shelves(seen);
  };

  // -- the list: a tall empty element, and in it only the items in view ------------------------------------------------------
  const pictures = list.classList.contains("pictures");
  const CELL = pictures ? 54 : 38; // pixels of a row, and of a column of pictures
  const SPARE = 4; // rows above and below what is in view
  const room = make("div", { class: "strip-room", role: "presentation" });
  list.append(room);
  const perRow = () => (pictures ? Math.max(1, Math.floor((room.clientWidth || CELL) / CELL)) : 1);
  const saidOf = (item) => `test item ${item.number}: predicted ${className(item.network)}${item.network === item.true ? ", correct" : `, actually ${className(item.true)}`}`;
  const option = (n, place, columns) => {
    const item = data.items[n];
    const said = saidOf(item);
    const inner = item.slot !== null ? [thumb("test", item.slot, said)]
      : [item.text === null ? make("span", { class: "ordinal" }, `#${item.number}`) : make("bdi", { class: "quote" }, item.text.slice(0, 160)),
        make("span", { class: "tagged" }, name(item.network))];
    const column = place % columns;
    return make("li", {
      role: "option", id: `explorer-option-${n}`, "data-n": n, "data-tip": said, "aria-label": said,
      "aria-selected": String(n === current), "aria-posinset": place + 1, "aria-setsize": offered.length,
      class: item.network === item.true ? null : "wrong",
      style: { top: `${CELL * Math.floor(place / columns)}px`, ...(pictures ? { left: `${CELL * column}px` } : {}) },
    }, ...inner);
  };
  const fill = () => {
    const columns = perRow();
    room.style.height = `${CELL * Math.ceil(offered.length / columns)}px`;
    const first = Math.max(0, Math.floor(list.scrollTop / CELL) - SPARE) * columns;
    const last = Math.min(offered.length, (Math.ceil((list.scrollTop + list.clientHeight) / CELL) + SPARE) * columns);
    room.replaceChildren(...offered.slice(first, last).map((n, k) => option(n, first + k, columns)));
    list.setAttribute("aria-activedescendant", `explorer-option-${current}`);
  };
  const bring = () => {
    const top = CELL * Math.floor(offered.indexOf(current) / perRow());
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + CELL > list.scrollTop + list.clientHeight) list.scrollTop = top + CELL - list.clientHeight + 16;
  };
  const choose = (n, { scroll = true } = {}) => {
    if (n !== current) wanted = null;
    current = n;
    if (scroll) bring();
    fill();
    draw();
  };
  const move = (by) => {
    if (!offered.length) return;
    const place = offered.indexOf(current);
    choose(offered[place < 0 ? 0 : Math.max(0, Math.min(offered.length - 1, place + by))]);
  };
  list.addEventListener("scroll", fill, { passive: true });
  new ResizeObserver(fill).observe(list);
  list.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow(), ArrowUp: -perRow(), Home: -data.items.length, End: data.items.length, PageDown: 4 * perRow(), PageUp: -4 * perRow() }[event.key];
    if (by === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    move(by);
  });
  addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest?.("input, select, textarea, [contenteditable], #review")) return;
    if (event.key === "/") {
      event.preventDefault();
      panel("search").scrollIntoView({ block: "center" });
      panel("search").focus();
    } else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
  });
  list.addEventListener("click", (event) => {
    const chosen = event.target.closest('[role="option"]');
    if (chosen) choose(Number(chosen.dataset.n));
  });

  // -- search: class:3, true:3, predicted:3, #123, id:name, wrong, right, differs, doubtful, words, "several words", numbers --
  const search = panel("search");
  const wrong = panel("wrong");
  const differ = panel("differ");
  const texts = data.items.map((item) => `${className(item.network)} ${className(item.true)} ${item.id ?? ""} ${item.text ?? ""}`.toLowerCase());
  const isClass = (k, text) => (classes.some((each) => each.toLowerCase() === text) ? className(k).toLowerCase() === text : String(k) === text);
  const doubts = (n) => classesOf(n).some((_, place) => pairsOf(data.evidence.top, rowOf[n] + place).some(([index]) => train(index).doubtful));
  const WORDS = {
    wrong: (item) => item.network !== item.true,
    right: (item) => item.network === item.true,
    differs: (item) => item.network !== item.predicted,
    doubtful: (item, n) => doubts(n),
  };
  const FIELDS = {
    class: (item, text) => isClass(item.network, text) || isClass(item.true, text),
    true: (item, text) => isClass(item.true, text),
    predicted: (item, text) => isClass(item.network, text),
    id: (item, text) => (item.id ?? "").toLowerCase() === text,
    trust: (item, text) => item.trust !== null && TRUST[item.trust].startsWith(text),
  };
  const tests = (text) => [...text.toLowerCase().matchAll(/(?:([a-z]+):)?(?:"([^"]*)"|(\S+))/g)].map(([, field, quoted, bare]) => {
    const word = quoted ?? bare;
    if (field !== undefined && Object.hasOwn(FIELDS, field)) return (item) => FIELDS[field](item, word);
    const whole = field === undefined ? word : `${field}:${word}`;
    if (quoted === undefined && field === undefined && Object.hasOwn(WORDS, word)) return WORDS[word];
    if (/^#\d+$/.test(whole)) return (item) => item.number === Number(whole.slice(1));
    if (quoted === undefined && /^\d+$/.test(whole)) {
      return (item) => item.number === Number(whole) || FIELDS.class(item, whole) || (item.text ?? "").split(/[^\p{L}\p{N}]+/u).includes(whole);
    }
    return (item, n) => texts[n].includes(whole);
  });
  const filter = () => {
    const needed = tests(search.value);
    if (wrong.checked) needed.push(WORDS.wrong);
    if (differ?.checked) needed.push(WORDS.differs);
    offered = data.items.map((_, n) => n).filter((n) => needed.every((test) => test(data.items[n], n)));
    panel("count").textContent = offered.length === data.items.length ? "" : offered.length ? `${counted(offered.length)} of ${counted(data.items.length)}` : "nothing found";
    list.scrollTop = 0;
    if (offered.length && !offered.includes(current)) choose(offered[0]);
    else {
      fill();
      if (data.items.length) head(look(current));
    }
  };
  search.addEventListener("input", filter);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "ArrowDown") list.focus();
  });
  wrong.addEventListener("change", filter);
  differ?.addEventListener("change", filter);
  for (const link of document.querySelectorAll("a[data-find]")) {
    link.addEventListener("click", () => {
      search.value = link.dataset.find;
      wrong.checked = false;
      if (differ) differ.checked = false;
      filter();
      if (offered.length) choose(offered[0]);
    });
  }

  // -- links to one item --------------------------------------------------------------------------------------------------
  const goTo = (n) => {
    if (!offered.includes(n)) {
      search.value = "";
      wrong.checked = false;
      if (differ) differ.checked = false;
      filter();
    }
    choose(n);
    document.getElementById("explorer").scrollIntoView();
  };
  const numbers = new Map(data.items.map((item, n) => [item.number, n]));
  const follow = () => {
    const found = /^#item-(\d+)$/.exec(location.hash);
    const n = found ? numbers.get(Number(found[1])) : undefined;
    if (n !== undefined) goTo(n);
    else if (found) {
      panel("count").textContent = `test item ${found[1]} is not among the items explained here`;
      document.getElementById("explorer").scrollIntoView();
    }
  };
  addEventListener("hashchange", follow);

  // a mark in a scatter plot links here if its item is in the list
  const places = new Map(data.items.map((item, n) => [item.index, n]));
  for (const mark of document.querySelectorAll(".plot .mark[data-item]")) {
    const n = places.get(Number(mark.dataset.item));
    if (n === undefined) mark.removeAttribute("data-item");
    else mark.addEventListener("click", () => goTo(n));
  }
  if (data.items.length) choose(0, { scroll: false });
  follow();
})();
