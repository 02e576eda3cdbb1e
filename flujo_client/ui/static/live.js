// Read the page again when the server tells of a change; copy tracebacks.
(() => {
  const here = document, all = (what) => [...here.querySelectorAll(what)];
  const { live, state } = here.body.dataset;
  let seen = state, now = state, isFilled, reads, source;
  const isBusy = () => isFilled || here.hidden || here.activeElement.form || !getSelection().isCollapsed;
  function swap(page) {
    const open = all("main details").map((e) => e.open), href = here.activeElement.getAttribute("href");
    const boxes = "main :is(.scroll, pre)", places = all(boxes).map((e) => [e.scrollLeft, e.scrollTop]);
    for (const part of ["nav", "main"]) here.querySelector(part).replaceChildren(...page.querySelector(part).childNodes);
    all("main details").forEach((e, n) => { e.open = open[n] ?? e.open; });
    all(boxes).forEach((e, n) => e.scrollTo(...places[n] ?? [0, 0]));
    here.title = page.title;
    if (href) here.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus({ preventScroll: 1 });
  }
  async function read() {
    if (reads || seen === now) return;
    const goal = now;
    reads = 1;
    try {
      const answer = !isBusy() && await fetch(location), page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (page.body.dataset.live && !isBusy()) { swap(page); seen = goal; }
    } catch {}
    reads = 0;
    setTimeout(read, 1000);
  }
  function listen() {
    source?.close();
    if (!live || here.hidden) return;
    source = new EventSource(live);
    source.onmessage = ({ data }) => { now = data; read(); };
  }
  addEventListener("input", () => { isFilled = 1; });
  addEventListener("visibilitychange", listen);
  addEventListener("click", ({ target }) => {
    const button = target.closest("[data-copy]");
    if (!button) return;
    const from = here.querySelector(button.dataset.copy);
    getSelection().selectAllChildren(from);
    navigator.clipboard?.writeText(from.textContent).then(() => { getSelection().empty(); button.textContent = "Copied"; });
  });
  listen();
})();
