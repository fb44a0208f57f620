// Updates the overview of bottles. The server renders it, checks permissions and escapes text.
"use strict";

(() => {
  const strip = document.getElementById("bottles");
  const EVERY_MS = 5000;
  if (!strip) return;

  async function refresh() {
    if (document.hidden || strip.matches(":focus-within")) return;
    const response = await fetch(strip.dataset.url, { credentials: "same-origin", headers: { "X-Background": "1" } });
    if (!response.ok || response.redirected) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (page.body.textContent === strip.textContent) return;
    strip.replaceChildren(...[...page.body.childNodes].map((node) => document.adoptNode(node)));
  }

  const quietly = () => refresh().catch(() => {});
  setInterval(quietly, EVERY_MS);
  document.addEventListener("bottle-changed", quietly); // the queue's websocket may know sooner
})();
