/* Label review: one doubtful item at a time, the evidence beside it; decisions stay in the browser and can be saved and loaded. */
(() => {
  "use strict";
  const holder = document.getElementById("data-problems");
  const body = document.getElementById("review-body");
  if (!holder || !body) return;
  const { counted, field, make, name, picture, save, shelf, shown, train } = ntkscope;
  const data = JSON.parse(holder.textContent);
  const at = (id) => document.getElementById(`review-${id}`);
  const key = `ntkscope-review-${data.record}`;
  const WORDS = { accept: "Accept", reject: "Keep", undecided: "Undecided" };

  const decisions = new Map(); // index of an item → decision
  const remember = () => {
    try {
      localStorage.setItem(key, JSON.stringify(Object.fromEntries(decisions)));
    } catch {
      say("This browser does not keep decisions for files: save them before you close the page.");
    }
  };
  const recall = () => {
    try {
      const known = new Set(data.items.map((item) => item.index));
      for (const [index, decision] of Object.entries(JSON.parse(localStorage.getItem(key) ?? "{}"))) {
        if (known.has(Number(index)) && Object.hasOwn(WORDS, decision)) decisions.set(Number(index), decision);
      }
    } catch {
      /* nothing was kept, or it cannot be read: start afresh */
    }
  };
  const say = (text) => {
    at("note").textContent = text;
    at("note").hidden = !text;
  };

  let current = 0;
  const decided = (item) => (decisions.get(item.index) ?? "undecided") !== "undecided";
  const shownItems = () => (at("open").checked ? data.items.filter((item) => !decided(item)) : data.items);

  const decide = (decision) => {
    const item = data.items[current];
    if (decision === "undecided") decisions.delete(item.index);
    else decisions.set(item.index, decision);
    remember();
    if (decision !== "undecided") move(1, item);
    draw();
  };
  const move = (by, from = data.items[current]) => {
    const offered = shownItems();
    if (!offered.length) return;
    const place = data.items.indexOf(from);
    const next = by > 0
      ? offered.find((item) => data.items.indexOf(item) > place) ?? offered[offered.length - 1]
      : [...offered].reverse().find((item) => data.items.indexOf(item) < place) ?? offered[0];
    current = data.items.indexOf(next);
  };

  const marks = () => {
    for (const mark of document.querySelectorAll("[data-decision]")) {
      const decision = decisions.get(Number(mark.dataset.decision));
      mark.textContent = decision ? { accept: "accepted", reject: "kept" }[decision] : "–";
      mark.className = decision ? `pill ${decision === "accept" ? "good" : "quiet"}` : "";
      mark.closest("td").dataset.value = decision ?? "";
    }
    const count = data.items.filter(decided).length;
    const accepted = data.items.filter((item) => decisions.get(item.index) === "accept").length;
    at("progress").textContent = `${counted(count)} of ${counted(data.items.length)} decided${accepted ? `, ${counted(accepted)} accepted` : ""}`;
  };

  const draw = () => {
    marks();
    const item = data.items[current];
    const known = train(item.index);
    const now = decisions.get(item.index) ?? "undecided";
    const button = (decision, ...words) => {
      const element = make("button", { type: "button", class: `action choice ${decision}`, "data-choice": decision, "aria-pressed": String(now === decision) }, ...words);
      element.addEventListener("click", () => {
        decide(decision);
        body.querySelector(`[data-choice="${decision}"]`).focus();
      });
      return element;
    };
    const agree = item.near.filter(([i]) => train(i).label === item.suggested).length;
    const same = item.near.filter(([i]) => train(i).label === item.label).length;
    const flagged = item.near.filter(([i]) => train(i).doubtful).length;
    const evidence = item.near.length
      ? [make("h4", {}, "The most similar training items"),
        make("p", { class: "soft small" }, `${agree} of ${item.near.length} ${agree === 1 ? "is" : "are"} labelled `, name(item.suggested), `, ${same} ${same === 1 ? "is" : "are"} labelled `, name(item.label),
          flagged ? `; ${flagged} of them ${flagged === 1 ? "is itself" : "are themselves"} doubtful, so count less.` : ". Dashed: not the suggested label."),
        shelf(null, item.near, { expected: item.suggested, worth: (v) => shown(v, 2) })]
      : [make("p", { class: "soft small" }, "This record does not hold the most similar items; X-ray the network again to see them.")];
    body.replaceChildren(
      make("div", { class: "review-item" },
        make("a", { href: `#train-${known.number}`, class: "to-item large", "aria-label": `training item ${known.number}` }, picture(item.index)),
        make("div", {},
          make("p", { class: "eyebrow" }, `Training item ${known.number}`, known.id === null ? "" : make("span", {}, " · ", make("code", {}, known.id)), `, ${current + 1} of ${data.items.length}`),
          make("p", { class: "labels" }, "labelled ", name(item.label, "given"), " · suggested ", name(item.suggested, "suggested")),
          make("p", { class: "soft small" }, `Label score ${shown(item.score)}: how much more a classifier trained without it favours the suggested label.`),
          make("div", { class: "choices", role: "group", "aria-label": "Decision" },
            button("accept", "Accept ", name(item.suggested)), button("reject", "Keep ", name(item.label)), button("undecided", "Undecided")))),
      make("div", { class: "review-evidence" }, ...evidence));
  };

  const chosen = () => data.items.map((item) => ({
    index: item.index, original: item.original, id: train(item.index).id, label: item.label, suggested: item.suggested,
    decision: decisions.get(item.index) ?? "undecided",
  }));
  const file = (ending) => `${data.name.replace(/[^A-Za-z0-9.]+/g, "-").replace(/^[-.]+|[-.]+$/g, "") || "xray"}-review.${ending}`;
  at("json").addEventListener("click", () => {
    const whole = { format: "ntkscope-review", version: 1, record: data.record, name: data.name, model: data.model, data: data.data, saved: new Date().toISOString(), decisions: chosen() };
    save(file("json"), `${JSON.stringify(whole, null, 1)}\n`, "application/json");
  });
  at("csv").addEventListener("click", () => {
    const heads = ["record", "index", "original", "id", "label", "suggested", "decision", "label_name", "suggested_name"];
    const lines = chosen().map((row) => [data.record, row.index, row.original, row.id, row.label, row.suggested, row.decision, ntkscope.className(row.label), ntkscope.className(row.suggested)]);
    save(file("csv"), `\ufeff${[heads, ...lines].map((line) => line.map((value) => field(value)).join(",")).join("\r\n")}\r\n`, "text/csv;charset=utf-8");
  });
  at("load").addEventListener("change", async () => {
    const [chosenFile] = at("load").files;
    at("load").value = "";
    if (!chosenFile) return;
    let whole;
    try {
      if (chosenFile.size > 64e6) throw new Error("it is too large");
      whole = JSON.parse(await chosenFile.text());
      if (whole?.format !== "ntkscope-review" || whole.version !== 1 || !Array.isArray(whole.decisions)) throw new Error("expected a review saved as JSON by a page like this one");
    } catch (error) {
      say(`${chosenFile.name} could not be read: ${error.message}.`);
      return;
    }
    if (whole.record !== data.record) {
      say(`${chosenFile.name} is a review of another X-ray${typeof whole.name === "string" ? ` (${whole.name})` : ""}; nothing was loaded.`);
      return;
    }
    const known = new Map(data.items.map((item) => [item.index, item]));
    let taken = 0;
    for (const row of whole.decisions) {
      const item = known.get(row?.index);
      if (!item || row.label !== item.label || !Object.hasOwn(WORDS, row.decision)) continue;
      if (row.decision === "undecided") decisions.delete(item.index);
      else decisions.set(item.index, row.decision);
      taken += 1;
    }
    remember();
    say(`${counted(taken)} of ${counted(whole.decisions.length)} decisions were loaded from ${chosenFile.name}.`);
    draw();
  });

  at("previous").addEventListener("click", () => { move(-1); draw(); });
  at("next").addEventListener("click", () => { move(1); draw(); });
  at("open").addEventListener("change", () => {
    const offered = shownItems();
    if (offered.length && !offered.includes(data.items[current])) current = data.items.indexOf(offered[0]);
    draw();
  });
  body.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const decision = { a: "accept", k: "reject", u: "undecided" }[event.key.toLowerCase()];
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!decision && !by) return;
    event.preventDefault();
    if (decision) decide(decision);
    else { move(by); draw(); }
    body.focus();
  });
  recall();
  draw();
})();
