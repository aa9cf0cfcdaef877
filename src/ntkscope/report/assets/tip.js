/* Tooltips: the text of an element's data-tip, next to the pointer or the focused element. */
(() => {
  "use strict";
  const tip = document.getElementById("tip");
  let owner = null;
  const place = (x, y) => {
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.max(4, Math.min(x + 14, document.documentElement.clientWidth - width - 4));
    const top = y + 18 + height > innerHeight ? y - height - 10 : y + 18;
    tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(Math.max(4, top))}px)`;
  };
  const show = (element, x, y) => {
    if (owner !== element) {
      owner = element;
      tip.textContent = element.dataset.tip;
      tip.hidden = false;
    }
    place(x, y);
  };
  const hide = () => {
    owner = null;
    tip.hidden = true;
  };
  const tipped = (event) => (event.target instanceof Element ? event.target.closest("[data-tip]") : null);
  addEventListener("pointermove", (event) => {
    const element = tipped(event);
    if (element) show(element, event.clientX, event.clientY);
    else hide();
  });
  addEventListener("focusin", (event) => {
    const element = tipped(event);
    if (!element || !element.matches(":focus-visible")) return;
    const box = element.getBoundingClientRect();
    show(element, box.left, box.bottom - 12);
  });
  addEventListener("focusout", hide);
  addEventListener("scroll", hide, { passive: true, capture: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
})();
