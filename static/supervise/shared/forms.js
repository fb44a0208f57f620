// Conveniences of every form: a confirming key, a single submission, a live preview. The forms work without them.
import { refreshTimes } from "./times.js";

const PREVIEW_MS = 250;

// One key never approves: this confirms only a form that was opened.
document.addEventListener("keydown", (event) => {
  const form = event.target.closest && event.target.closest("details[open] > form, .bulk-form");
  if (form && event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.repeat) {
    event.preventDefault();
    const button = form.querySelector("button.approve, button.reject");
    if (button) form.requestSubmit(button);
  }
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) event.preventDefault();
  else if (!event.defaultPrevented) form.dataset.sent = "1";
});

export function sendable(form) {
  delete form.dataset.sent;
}

window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) sendable(form);
});

// Scroll to the panel that a link opened.
export function prepare(root) {
  for (const field of root.querySelectorAll("input[name=utc_offset]")) field.value = -new Date().getTimezoneOffset();
  for (const button of root.querySelectorAll("[data-noscript]")) button.hidden = true;
  for (const form of root.querySelectorAll("form[data-preview]")) {
    form.addEventListener("input", () => previewSoon(form));
    form.closest("details").addEventListener("toggle", () => previewSoon(form));
    previewSoon(form);
  }
  for (const panel of root.querySelectorAll("details.panel")) panel.addEventListener("toggle", () => enter(panel));
  const opened = root.querySelector("details.panel[open]");
  if (opened) enter(opened);
  refreshTimes(root);
}

function enter(panel) {
  if (!panel.open) return;
  const field = panel.querySelector("textarea:not([hidden]), button");
  if (field) field.focus({ preventScroll: false });
}

// --- Modifying

document.addEventListener("input", (event) => {
  // Typing a path or ticking a method selects "only these".
  const group = event.target.dataset && event.target.dataset.chooses;
  const form = event.target.form;
  if (!group || !form) return;
  for (const radio of form.querySelectorAll("input[type=radio]")) {
    if (radio.name === group && radio.value === "some") radio.checked = true;
  }
}, true);

function previewSoon(form) {
  if (!form.closest("details").open) return;
  clearTimeout(form.previewTimer);
  form.previewTimer = setTimeout(() => preview(form).catch(() => {}), PREVIEW_MS);
}

async function preview(form) {
  const number = (form.previewNumber = (form.previewNumber || 0) + 1);
  const part = await fetchPart(form.dataset.preview, ".preview", { method: "POST", body: new FormData(form) });
  const place = form.querySelector(".preview");
  if (part && place && number === form.previewNumber) place.replaceWith(part); // an older answer is no news
}

// --- Fragments of pages, rendered by the server

export class SignedOut extends Error {}

// For requests that no user started: they do not keep a session alive.
export const BACKGROUND = { headers: { "X-Fragment": "1", "X-Background": "1" } };

export async function fetchParts(url, selector, options = {}) {
  const answer = await fetch(url, { credentials: "same-origin", headers: { "X-Fragment": "1" }, ...options });
  if (answer.redirected) throw new SignedOut();
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  return { status: answer.status, parts: [...page.querySelectorAll(selector)].map((part) => document.adoptNode(part)) };
}

export async function fetchPart(url, selector, options) {
  return (await fetchParts(url, selector, options)).parts[0] || null;
}

prepare(document);
