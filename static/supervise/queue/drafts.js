// Updates the list of refused requests that were not asked for. A closed list is replaced. In an open one the lines
// stay in place: new ones wait behind a button, obsolete ones turn grey.
import { BACKGROUND, fetchPart } from "../shared/forms.js";
import { refreshTimes } from "../shared/times.js";

const AT_MOST_EVERY_MS = 1000;
const place = document.getElementById("drafts");
const news = document.getElementById("news");
const shown = () => place.querySelector("details.drafts");
const linesOf = (part) => new Map([...part.querySelectorAll("[data-key]")].map((line) => [line.dataset.key, line]));
let timer = null;
let lookedAt = 0;

export function lookSoon() {
  if (timer || document.hidden) return; // however many are refused, one look takes them all in
  timer = setTimeout(async () => {
    lookedAt = Date.now();
    await look().catch(() => {}); // the queue's own look says when somebody is signed out
    timer = null;
  }, Math.max(0, lookedAt + AT_MOST_EVERY_MS - Date.now()));
}

async function look() {
  const fresh = await fetchPart(place.dataset.url, "details.drafts", BACKGROUND);
  const old = shown();
  if (old && old.open) compare(old, fresh);
  else put(fresh);
}

function put(fresh) {
  const old = shown();
  const hadFocus = old && old.contains(document.activeElement);
  if (fresh && old) fresh.open = old.open;
  place.replaceChildren(...(fresh ? [fresh] : []));
  refreshTimes(place);
  if (hadFocus && fresh) fresh.querySelector("summary").focus({ preventScroll: true });
}

function compare(old, fresh) {
  const [before, now] = [linesOf(old), fresh ? linesOf(fresh) : new Map()];
  for (const [key, line] of before) {
    const [same, told] = [now.get(key), line.querySelector(".told")];
    line.classList.toggle("is-over", !same);
    if (!same) told.textContent = "let through by now, or somebody asked";
    else if (same.dataset.ask === line.dataset.ask) told.replaceWith(same.querySelector(".told").cloneNode(true));
  }
  const isNew = ([key, line]) => !before.has(key) || before.get(key).dataset.ask !== line.dataset.ask;
  offer(old.querySelector(".new-drafts"), [...now].filter(isNew).length, fresh);
  old.querySelector("summary strong").textContent = now.size;
  refreshTimes(place);
}

function offer(button, count, fresh) {
  const text = count ? `${count} new: show` : "";
  button.hidden = !count;
  button.onclick = () => put(fresh);
  if (button.textContent === text) return;
  button.textContent = text;
  if (count) news.textContent = `${count} new kind${count > 1 ? "s" : ""} of refused request`;
}

document.addEventListener("visibilitychange", lookSoon);
