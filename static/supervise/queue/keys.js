// Keys move, open and search. None of them decides anything: a dialog opens, and Ctrl+Enter there confirms.
import * as sheet from "./sheet.js";

const help = document.getElementById("keys");
const cards = () => [...document.querySelectorAll("#cards > .card")];
const PANELS = { o: "", a: "approve", e: "modify", r: "reject", s: "snooze" };

function current() {
  return document.activeElement && document.activeElement.closest("#cards > .card");
}

function move(step) {
  const all = cards();
  const at = all.indexOf(current());
  const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + step))];
  if (!next) return;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function openPanel(panel) {
  const card = current();
  if (!card) return move(0);
  const link = card.querySelector(`[data-open="${panel}"]`);
  if (link) link.click();
}

const DEEDS = {
  j: () => move(1),
  k: () => move(-1),
  x: () => current() && current().querySelector(".pick") && current().querySelector(".pick").click(),
  n: () => document.getElementById("new-cards").click(),
  "/": () => document.getElementById("search").focus(),
  "?": () => help.showModal(),
};

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.defaultPrevented) return;
  if (sheet.isOpen() || help.open) return;
  if (event.key in PANELS) openPanel(PANELS[event.key]);
  else if (event.key in DEEDS) DEEDS[event.key]();
  else return;
  event.preventDefault();
});

const button = document.getElementById("help");
button.hidden = false;
button.addEventListener("click", () => help.showModal());
