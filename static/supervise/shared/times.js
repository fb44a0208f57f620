// Ages, local times and countdowns. The server writes UTC; users see their local time, and UTC on hover.
const UNITS = [[86400, "day"], [3600, "hour"], [60, "minute"]];
let serverAhead = 0; // seconds that the server's clock is ahead of this one

export function setServerClock(seconds) {
  if (Number.isFinite(seconds)) serverAhead = seconds - Date.now() / 1000;
}

const now = () => Date.now() / 1000 + serverAhead;

function age(seconds) {
  for (const [size, name] of UNITS) {
    const count = Math.floor(seconds / size);
    if (count >= 1) return `${count} ${name}${count > 1 ? "s" : ""} ago`;
  }
  return "just now";
}

function local(date) {
  return date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

function countdown(seconds) {
  if (seconds <= 0) return "no call waits";
  return seconds < 90 ? `call waits ${Math.ceil(seconds)} s` : `call waits ${Math.round(seconds / 60)} min`;
}

export function refreshTimes(root = document) {
  for (const time of root.querySelectorAll("time[data-age], time[data-local]")) {
    const date = new Date(time.dateTime);
    const text = "local" in time.dataset ? local(date) : age(now() - date.getTime() / 1000);
    if (time.textContent !== text) time.textContent = text;
    const utc = `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
    if (!time.title.endsWith(utc) || time.title === utc) time.title = `${local(date)}, ${utc}`;
  }
  for (const mark of root.querySelectorAll("[data-deadline]")) {
    const left = Number(mark.dataset.deadline) - now();
    const text = countdown(left);
    if (mark.textContent !== text) mark.textContent = text;
    mark.classList.toggle("is-short", left > 0 && left < 15);
    mark.classList.toggle("is-over", left <= 0);
  }
}

refreshTimes();
setInterval(refreshTimes, 1000);
