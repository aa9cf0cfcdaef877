/* Theme: system, light or dark; remembered if the browser allows it. Folds open for print. */
(() => {
  "use strict";
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const names = { auto: "system", light: "light", dark: "dark" };
  const signs = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" };
  const remember = (value) => {
    try {
      if (value !== undefined) localStorage.setItem("ntkscope-theme", value);
      return localStorage.getItem("ntkscope-theme");
    } catch {
      return null;
    }
  };
  const set = (value) => {
    const theme = value in names ? value : "auto";
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    button.textContent = signs[theme];
    button.setAttribute("aria-label", `Theme: ${names[theme]}`);
    return theme;
  };
  let theme = set(remember());
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = set({ auto: "dark", dark: "light", light: "auto" }[theme]);
    remember(theme);
  });

  const opened = [];
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details:not([open])")) {
      fold.open = true;
      opened.push(fold);
    }
  });
  addEventListener("afterprint", () => {
    for (const fold of opened.splice(0)) fold.open = false;
  });

  // a link into a folded section opens it
  const unfold = () => {
    const fold = document.getElementById(location.hash.slice(1))?.querySelector(":scope > details.whole-section");
    if (fold) fold.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  // the link of the section in view
  const links = new Map([...document.querySelectorAll(".bar nav a")].map((a) => [a.getAttribute("href").slice(1), a]));
  const sections = [...document.querySelectorAll("main > section")];
  const mark = () => {
    const line = innerHeight * 0.3;
    let current = null;
    for (const section of sections) if (section.getBoundingClientRect().top < line) current = section.id;
    for (const [id, link] of links) {
      if (id === current && !link.hasAttribute("aria-current")) {
        link.setAttribute("aria-current", "true");
        const list = link.closest("ol");
        list.scrollTo({ left: link.parentElement.offsetLeft - list.offsetLeft - list.clientWidth / 3 });
      } else if (id !== current) link.removeAttribute("aria-current");
    }
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
})();
