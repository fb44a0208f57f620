// The dialog on the queue: one proposal with its forms. Its content is rendered by the server.
import { SignedOut, fetchParts, prepare, sendable } from "../shared/forms.js";

const sheet = document.getElementById("sheet");
const content = document.getElementById("sheet-content");
const link = document.getElementById("sheet-link");
let openedFor = null; // the card that had the focus
let decided = () => {};

export const isOpen = () => sheet.open;
export const shownId = () => (sheet.open ? (content.querySelector(".detail") || { dataset: {} }).dataset.id : null);

export function whenDecided(then) {
  decided = then;
}

export async function open(card, panel) {
  openedFor = card;
  link.href = card.dataset.link;
  const found = await load(card.dataset.link + (panel ? `?open=${panel}` : ""));
  if (!found) return void (location.href = card.dataset.link);
  if (!sheet.open) sheet.showModal();
  content.scrollTop = 0;
  show(found);
  if (!content.querySelector("details.panel[open]")) content.focus();
}

async function load(url, options) {
  const { status, parts } = await fetchParts(url, ".detail, .messagelist", options);
  return parts.length ? { status, part: parts[0] } : null;
}

function show({ part }) {
  content.replaceChildren(part);
  prepare(content);
  const problem = content.querySelector("[role=alert]");
  if (problem) problem.scrollIntoView({ block: "start" });
}

content.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.method !== "post" || "page" in form.dataset) return;
  event.preventDefault();
  if (form.dataset.sent) return;
  form.dataset.sent = "1";
  const body = new FormData(form, event.submitter);
  const url = (event.submitter && event.submitter.getAttribute("formaction")) || form.action;
  try {
    const answer = await load(url, { method: "POST", body });
    if (!answer) throw new Error("no answer");
    if (answer.part.matches(".messagelist")) return done(answer.part);
    show(answer);
  } catch (error) {
    sendable(form);
    if (error instanceof SignedOut) form.submit(); // signs in, and comes back to the proposal
    else fail(form);
  }
});

function fail(form) {
  const earlier = form.querySelector(".problem");
  if (earlier) earlier.remove();
  const notice = document.createElement("p");
  notice.className = "problem";
  notice.setAttribute("role", "alert");
  notice.textContent = "The console did not answer. Nothing may have been decided: check the card, then try again.";
  form.prepend(notice);
}

function done(list) {
  const id = shownId();
  sheet.close();
  decided(id, list);
}

// The effect of this proposal changed since it was shown: the open form stays, but says so.
export function offerNewer() {
  const detail = content.querySelector(".detail");
  if (!detail || detail.querySelector(".newer")) return;
  const notice = document.createElement("p");
  notice.className = "newer";
  notice.setAttribute("role", "alert");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button-quiet";
  button.textContent = "Show it as it is now";
  button.addEventListener("click", () => open(openedFor, ""));
  notice.append("This has changed since it was shown. ", button);
  detail.prepend(notice);
}

export const shownState = () => (content.querySelector(".detail") || { dataset: {} }).dataset.state;

for (const button of document.querySelectorAll("dialog [data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}
sheet.addEventListener("close", () => {
  content.replaceChildren();
  if (openedFor && openedFor.isConnected) openedFor.focus();
});
// A click outside the dialog closes it, unless something was typed.
sheet.addEventListener("click", (event) => {
  const typed = [...content.querySelectorAll("textarea[name=note]")].some((field) => field.value.trim());
  if (event.target === sheet && !typed) sheet.close();
});
