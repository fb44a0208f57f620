// A running rebuild. Its log arrives by a websocket as text, from where the page has it. When anything else
// changes, the server renders the panel again and the log stays in place. Without script, reloading shows the same.
import { BACKGROUND, SignedOut, fetchPart } from "../shared/forms.js";

const RETRY_MS = [500, 1000, 2000, 5000];
const MOST_SHOWN = 400000; // characters: what is older stays in the file
const OVER = 4200; // this code of the server's, and those above, are its last word

class Follower {
  constructor(part) {
    this.part = part;
    this.offset = Number(part.dataset.offset);
    this.attempts = 0;
    this.isOver = false;
    this.showEnd();
    this.connect();
  }

  connect() {
    if (!this.part.isConnected) return followers.delete(this.part);
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${this.part.dataset.socket}`);
    this.socket = socket;
    socket.addEventListener("open", () => this.ask());
    socket.addEventListener("message", (message) => this.hear(JSON.parse(message.data)));
    socket.addEventListener("close", (event) => this.closed(event.code));
  }

  ask() {
    if (!this.part.isConnected) return this.socket.close();
    const { rebuild, progress } = this.part.dataset;
    if (this.socket.readyState === WebSocket.OPEN) {
      this.socket.send(JSON.stringify({ rebuild: Number(rebuild), offset: this.offset, progress }));
    }
  }

  async hear(event) {
    this.attempts = 0;
    if (event.type === "log" && event.after === this.offset) {
      this.append(event.text);
      this.offset = event.offset;
      this.ask();
    } else if (event.type === "progress") {
      await this.refresh();
      this.ask();
    }
  }

  async closed(code) {
    if (code >= OVER) return;
    // Websockets do not work, or the session ended: fetching the panel shows which, and includes the log's end.
    if (this.attempts > 0) await this.refresh();
    if (this.isOver) return;
    const pause = RETRY_MS[Math.min(this.attempts, RETRY_MS.length - 1)];
    this.attempts += 1;
    setTimeout(() => this.connect(), pause);
  }

  // --- The log

  get log() {
    return this.part.querySelector("pre.log");
  }

  append(text) {
    const place = this.log.firstElementChild;
    const isAtEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 40;
    this.log.closest("details").hidden = false;
    place.append(text);
    while (place.textContent.length > MOST_SHOWN && place.childNodes.length > 1) place.firstChild.remove();
    if (isAtEnd) this.showEnd();
  }

  takeLog(fresh) {
    const offset = Number(fresh.dataset.offset);
    if (offset <= this.offset) return;
    const place = this.log.firstElementChild;
    const earlier = [...place.childNodes];
    this.append(fresh.querySelector("pre.log").textContent);
    for (const node of earlier) node.remove();
    this.offset = offset;
  }

  showEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  // --- The rest

  async refresh() {
    let fresh = null;
    try {
      fresh = await fetchPart(this.part.dataset.url, ".rebuild", BACKGROUND);
    } catch (error) {
      if (error instanceof SignedOut) this.isOver = true;
      return; // the server tells again that this is out of date
    }
    if (!fresh || !this.part.isConnected) return;
    if (fresh.dataset.rebuild !== this.part.dataset.rebuild) return void this.part.replaceWith(fresh);
    const kept = this.part.querySelector(".log-part");
    for (const node of [...this.part.childNodes]) if (node !== kept) node.remove();
    const nodes = [...fresh.childNodes];
    const at = nodes.indexOf(fresh.querySelector(".log-part"));
    kept.before(...nodes.slice(0, at));
    kept.after(...nodes.slice(at + 1));
    if (this.socket.readyState !== WebSocket.OPEN) this.takeLog(fresh);
    this.part.dataset.progress = fresh.dataset.progress;
    this.part.toggleAttribute("data-running", "running" in fresh.dataset);
  }
}

const followers = new Map();
const shown = new WeakSet();

function follow() {
  for (const part of document.querySelectorAll(".rebuild:not([data-running])")) {
    if (!followers.has(part)) showWhyItEnded(part);
  }
  for (const part of document.querySelectorAll(".rebuild[data-running]")) {
    if (!followers.has(part)) followers.set(part, new Follower(part));
  }
  for (const [part, follower] of followers) {
    if (part.isConnected) continue;
    followers.delete(part);
    follower.isOver = true;
    follower.socket.close();
  }
}

function showWhyItEnded(part) {
  const log = part.querySelector("pre.log");
  if (!log || shown.has(log)) return;
  shown.add(log);
  log.scrollTop = log.scrollHeight;
}

// Cards and the dialog are replaced.
new MutationObserver(follow).observe(document.body, { childList: true, subtree: true });
follow();
