// The live queue. The websocket only says which proposal changed; every card is fetched from the server, where
// permissions are checked and all text is escaped. Decisions are plain forms and work without this file.
"use strict";

(() => {
  const connection = document.getElementById("connection");
  const list = document.getElementById("cards");
  const RETRY_MS = [500, 1000, 2000, 5000, 10000];
  const RECONCILE_MS = 800;

  // --- Forms

  document.addEventListener("keydown", (event) => {
    // Never one key to approve: keys only confirm a form that somebody opened.
    const form = event.target.closest && event.target.closest("details[open] > form");
    if (form && event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      form.requestSubmit();
    }
  });

  document.addEventListener("submit", (event) => {
    const button = event.target.querySelector(".decide button[type=submit], form button[type=submit]");
    if (event.target.closest(".decide") && button) {
      if (button.dataset.sent) event.preventDefault();
      button.dataset.sent = "1";
    }
  });

  document.addEventListener("input", (event) => {
    // Writing a path or ticking a method chooses "only these".
    const group = event.target.dataset && event.target.dataset.chooses;
    const form = event.target.form;
    if (!group || !form) return;
    for (const radio of form.querySelectorAll("input[type=radio]")) {
      if (radio.name === group && radio.value === "some") radio.checked = true;
    }
  });

  window.addEventListener("pageshow", () => {
    for (const button of document.querySelectorAll("button[data-sent]")) delete button.dataset.sent;
  });

  // --- Ages

  function age(seconds) {
    for (const [size, name] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) {
      const count = Math.floor(seconds / size);
      if (count >= 1) return `${count} ${name}${count > 1 ? "s" : ""}`;
    }
    return "less than a minute";
  }

  function refreshAges() {
    for (const time of document.querySelectorAll(".card time")) {
      time.textContent = age((Date.now() - Date.parse(time.dateTime)) / 1000);
    }
  }
  refreshAges();
  setInterval(refreshAges, 15000);

  if (!connection || !list) return; // a proposal's own page

  // --- Cards

  const waiting = new Map(); // arrived while the operator was busy: id → card
  const pill = document.getElementById("new-cards");

  const cardOf = (id) => document.getElementById(`card-${id}`);
  const isPending = (card) => card.dataset.status === "pending";
  const isBeingDecided = (card) => card.querySelector("details.panel[open]") !== null;
  // A card that appears above the pointer would move another one's button under it.
  const isBusy = () => list.matches(":hover, :focus-within") || [...list.children].some(isBeingDecided);

  async function fetchCard(id) {
    const response = await fetch(`/proposals/${encodeURIComponent(id)}/card`, { credentials: "same-origin" });
    if (response.redirected || response.status === 403) throw new SignedOut();
    if (!response.ok) return null;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const card = page.querySelector("article.card");
    return card && document.adoptNode(card);
  }

  class SignedOut extends Error {}

  function comesBefore(card, other) {
    if (!isPending(other)) return false;
    const risk = Number(card.dataset.risk) - Number(other.dataset.risk);
    return risk !== 0 ? risk > 0 : Number(card.dataset.created) >= Number(other.dataset.created);
  }

  function insert(card) {
    const next = [...list.children].find((other) => comesBefore(card, other));
    list.insertBefore(card, next || null);
    card.classList.add("is-new");
    refreshAges();
    showEmptiness();
  }

  function arrive(card) {
    if (!isBusy()) return insert(card);
    waiting.set(card.dataset.id, card);
    showPill();
  }

  function showPill() {
    pill.hidden = waiting.size === 0;
    pill.textContent = `${waiting.size} new: show`;
  }

  function showWaiting() {
    for (const card of waiting.values()) insert(card);
    waiting.clear();
    showPill();
  }
  pill.addEventListener("click", showWaiting);

  function showEmptiness() {
    document.getElementById("empty").hidden = list.children.length > 0 || waiting.size > 0;
  }

  function replace(old, card) {
    if (isPending(card) && isBeingDecided(old)) {
      if (card.dataset.seen !== old.dataset.seen) offerNewer(old, card);
      return;
    }
    // Keep the height, so that nothing moves under the pointer.
    if (!isPending(card)) card.style.minHeight = `${old.offsetHeight}px`;
    old.replaceWith(card);
    refreshAges();
  }

  function offerNewer(old, card) {
    const earlier = old.querySelector(".newer");
    if (earlier) earlier.remove();
    const notice = document.createElement("p");
    notice.className = "newer";
    notice.setAttribute("role", "alert");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "button";
    button.textContent = "Show it as it is now";
    button.addEventListener("click", () => old.replaceWith(card));
    notice.append("What this would do has changed since it was shown. ", button);
    old.prepend(notice);
  }

  async function refresh(id) {
    const card = await fetchCard(id);
    if (!card) return;
    const old = cardOf(id);
    if (old) {
      if (old.dataset.state !== card.dataset.state) replace(old, card);
    } else if (isPending(card)) {
      arrive(card);
    } else {
      waiting.delete(id);
      showPill();
    }
  }

  // One refresh at a time, each proposal at most once in the line.
  const line = new Set();
  let isWorking = false;

  async function enqueue(...ids) {
    for (const id of ids) line.add(id);
    if (isWorking) return;
    isWorking = true;
    try {
      for (const id of line) {
        line.delete(id);
        await refresh(id);
      }
    } catch (error) {
      line.clear();
      if (error instanceof SignedOut) signOut();
    } finally {
      isWorking = false;
    }
  }

  // --- State

  function showCounts(counts) {
    document.getElementById("pending-count").textContent = counts.pending;
    document.getElementById("bottle-count").textContent = counts.bottles;
    document.title = document.title.replace(/^(\(\d+\) )?/, counts.pending ? `(${counts.pending}) ` : "");
  }

  async function reconcile() {
    const response = await fetch(connection.dataset.stateUrl, { credentials: "same-origin" });
    if (response.redirected || response.status === 403) return signOut();
    if (!response.ok) return;
    const state = await response.json();
    showCounts(state.counts);
    const shown = [...list.children].filter(isPending).map((card) => card.dataset.id);
    const gone = shown.filter((id) => !(id in state.cards));
    const changed = Object.keys(state.cards).filter((id) => {
      const card = cardOf(id) || waiting.get(id);
      return !card || card.dataset.state !== state.cards[id];
    });
    await enqueue(...gone, ...changed.reverse());
  }

  let reconcileTimer = null;
  function reconcileSoon() {
    clearTimeout(reconcileTimer);
    reconcileTimer = setTimeout(() => reconcile().catch(() => {}), RECONCILE_MS);
  }

  // --- Connection

  let attempts = 0;
  let isSignedOut = false;
  let socket = null;

  function say(state, text) {
    connection.dataset.state = state;
    connection.textContent = text;
  }

  function signOut() {
    isSignedOut = true;
    if (socket) socket.close();
    say("lost", "signed out: reload this page");
  }

  function connect() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(`${scheme}//${location.host}${connection.dataset.socket}`);
    socket.addEventListener("open", () => {
      attempts = 0;
      say("connected", "connected");
      reconcile().catch(() => {}); // subscribed first, so nothing that happens from now on is missed
    });
    socket.addEventListener("message", (message) => {
      const event = JSON.parse(message.data);
      if (event.type !== "proposal") return;
      showCounts(event.counts);
      enqueue(event.id);
      if (event.kind === "decided") reconcileSoon(); // it may have changed what other cards would do
    });
    socket.addEventListener("close", () => {
      if (isSignedOut) return;
      say("reconnecting", "reconnecting…");
      // A refused connection may mean that the session ended: asking for the state tells.
      if (attempts > 0) reconcile().catch(() => {});
      setTimeout(() => isSignedOut || connect(), RETRY_MS[Math.min(attempts, RETRY_MS.length - 1)]);
      attempts += 1;
    });
  }

  say("reconnecting", "connecting…");
  connect();
})();
