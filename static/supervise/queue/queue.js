// The live queue. The websocket only says that something changed; every card is fetched from the server, where
// permissions are checked and all text is escaped. Rows never move by themselves: what is new waits behind a pill.
import { showPending } from "./attention.js";
import * as drafts from "./drafts.js";
import { BACKGROUND, SignedOut, fetchParts } from "../shared/forms.js";
import "./keys.js";
import * as sheet from "./sheet.js";
import { refreshTimes, setServerClock } from "../shared/times.js";

const RETRY_MS = [500, 1000, 2000, 5000, 10000];
const REFRESH_MS = 700; // between two looks at the state, however much happens
const ROUTINE_MS = 20000;
const STALE_MS = 45000;

const connection = document.getElementById("connection");
const place = document.getElementById("list");
const pill = document.getElementById("new-cards");
const news = document.getElementById("news");
const view = () => location.search.replace(/^\?/, "");
const list = () => document.getElementById("cards");
const cardOf = (id) => document.getElementById(`card-${id}`);

// --- Cards

function address(url, more = "") {
  const query = [view(), more].filter(Boolean).join("&");
  return query ? `${url}?${query}` : url;
}

function replace(card) {
  const old = cardOf(card.dataset.id);
  if (!old || old.dataset.state === card.dataset.state) return; // under a pointer, it must not be another one
  const hadFocus = old.contains(document.activeElement);
  const pick = old.querySelector(".pick");
  const newPick = card.querySelector(".pick");
  if (pick && newPick) newPick.checked = pick.checked;
  // Keep the height, so that nothing moves under the pointer.
  if (card.dataset.status !== "pending") card.style.minHeight = `${old.offsetHeight}px`;
  old.replaceWith(card);
  if (hadFocus) card.focus({ preventScroll: true });
}

async function fetchCards(ids) {
  if (!ids.length) return;
  const query = ids.map((id) => `id=${encodeURIComponent(id)}`).join("&");
  const { parts } = await fetchParts(`${connection.dataset.cardsUrl}?${query}`, "article.card", BACKGROUND);
  parts.forEach(replace);
  refreshTimes(place);
}

async function showList(options) {
  const { parts } = await fetchParts(address(connection.dataset.listUrl), "#cards, .pages", options);
  if (!parts.length) return;
  place.replaceChildren(...parts);
  refreshTimes(place);
  showArrivals(0);
  document.getElementById("empty").hidden = list().children.length > 0;
}

function showArrivals(count) {
  pill.hidden = count === 0;
  const text = count ? `${count} new: show` : "";
  if (pill.textContent === text) return;
  pill.textContent = text;
  news.textContent = count ? `${count} new proposal${count > 1 ? "s" : ""}` : "";
}

pill.addEventListener("click", async () => {
  pill.hidden = true;
  await attempt(() => showList());
  const first = list().querySelector(".card");
  window.scrollTo({ top: 0 });
  if (first) first.focus({ preventScroll: true });
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("#cards [data-open]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const card = link.closest(".card");
  attempt(() => sheet.open(card, link.dataset.open));
});

sheet.whenDecided((id, messages) => {
  const earlier = document.querySelector(".messagelist");
  if (earlier) earlier.remove();
  messages.setAttribute("role", "status");
  document.querySelector(".filters").before(messages);
  attempt(() => fetchCards([id]));
  refreshSoon();
});

for (const field of document.querySelectorAll("#filters select")) {
  field.addEventListener("change", () => field.form.requestSubmit());
}
document.getElementById("filters").addEventListener("submit", (event) => {
  // The address without empty parameters.
  for (const field of event.target.elements) field.disabled = field.name !== "" && field.value === "";
});
window.addEventListener("pageshow", () => {
  for (const field of document.getElementById("filters").elements) field.disabled = false;
});

// --- State

function say(id, text) {
  const place = document.getElementById(id);
  if (place.textContent !== String(text)) place.textContent = text;
}

function showCounts(counts) {
  for (const name of ["pending", "high", "waiting", "running"]) say(`${name}-count`, counts[name]);
  document.getElementById("high-count").parentElement.classList.toggle("is-hot", counts.high > 0);
  showPending(counts);
}

function showProxy(proxy) {
  const place = document.getElementById("proxy");
  place.dataset.label = proxy.label;
  place.title = proxy.tooltip;
  say("proxy", proxy.summary);
}

function showRest(after) {
  const rest = document.getElementById("after");
  if (!rest) return;
  rest.hidden = after === 0;
  rest.querySelector("strong").textContent = after;
}

let lookedAt = 0;

async function look() {
  const asked = list();
  const pending = [...asked.children].filter((card) => card.dataset.status === "pending");
  // A shown card may have moved to another page, or been snoozed, so each is requested by its id.
  const about = [["since", asked.dataset.since], ...pending.map((card) => ["id", card.dataset.id])];
  const url = address(connection.dataset.stateUrl, new URLSearchParams(about).toString());
  const answer = await fetch(url, { credentials: "same-origin", ...BACKGROUND });
  if (answer.redirected || answer.status === 403) throw new SignedOut();
  if (!answer.ok) return;
  const state = await answer.json();
  lookedAt = Date.now();
  setServerClock(state.now);
  showCounts(state.counts);
  showProxy(state.proxy);
  if (asked !== list()) return void (mustLook = true); // the rest was about what was shown before
  showRest(state.after);
  const shown = [...list().children].filter((card) => card.dataset.status === "pending");
  // With an empty list nothing can move, so new cards are shown at once.
  if (!shown.length && Object.keys(state.cards).length && !sheet.isOpen()) return showList(BACKGROUND);
  const changed = shown.filter((card) => state.cards[card.dataset.id] !== card.dataset.state).map((card) => card.dataset.id);
  showArrivals(state.arrived);
  await fetchCards(changed.slice(0, 50));
  const open = sheet.shownId();
  if (open && cardOf(open) && cardOf(open).dataset.state !== sheet.shownState()) sheet.offerNewer();
}

let isLooking = false;
let mustLook = false;
let timer = null;

async function refresh() {
  if (isLooking) return void (mustLook = true);
  isLooking = true;
  await attempt(look);
  isLooking = false;
  if (mustLook) {
    mustLook = false;
    refreshSoon();
  }
}

function refreshSoon() {
  if (timer || document.hidden) return; // however many events come, one look takes them all in
  timer = setTimeout(() => {
    timer = null;
    refresh();
  }, REFRESH_MS);
}

async function attempt(deed) {
  try {
    await deed();
  } catch (error) {
    if (error instanceof SignedOut) signOut();
  }
}

// --- Connection

let attempts = 0;
let isSignedOut = false;
let socket = null;

function showConnection(state, text) {
  if (connection.dataset.state === state && connection.textContent === text) return;
  connection.dataset.state = state;
  connection.textContent = text;
}

function signOut() {
  isSignedOut = true;
  if (socket) socket.close();
  showConnection("signed-out", "signed out: reload this page");
}

function judge() {
  if (isSignedOut) return;
  const quiet = Date.now() - lookedAt;
  if (!socket || socket.readyState !== WebSocket.OPEN) showConnection("disconnected", "disconnected: trying again");
  else if (quiet > STALE_MS) showConnection("stale", `stale: last news ${Math.round(quiet / 1000)} s ago`);
  else showConnection("connected", "connected");
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(`${scheme}//${location.host}${connection.dataset.socket}`);
  socket.addEventListener("open", async () => {
    attempts = 0;
    drafts.lookSoon();
    await refresh(); // subscribed first, so nothing that happens from now on is missed
    judge();
  });
  socket.addEventListener("message", (message) => {
    const event = JSON.parse(message.data);
    drafts.lookSoon(); // an ask or a decision may end one, or bring one back
    if (event.type === "refused") return;
    if (event.type === "proposals") showCounts(event.counts);
    else document.dispatchEvent(new CustomEvent("bottle-changed"));
    refreshSoon();
  });
  socket.addEventListener("close", () => {
    if (isSignedOut) return;
    judge();
    // A refused connection may mean that the session ended: fetching the state shows it.
    if (attempts > 0) refresh();
    setTimeout(() => isSignedOut || connect(), RETRY_MS[Math.min(attempts, RETRY_MS.length - 1)]);
    attempts += 1;
  });
}

// A hidden page gets its counts from the messages, and fetches the rest when it becomes visible.
document.addEventListener("visibilitychange", () => document.hidden || isSignedOut || refresh());
lookedAt = Date.now();
connect();
setInterval(judge, 1000);
setInterval(() => isSignedOut || refresh(), ROUTINE_MS);
