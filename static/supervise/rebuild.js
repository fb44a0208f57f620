// A rebuild that is at work, kept up to date: the server makes the part anew, with its log as far as it is.
import { fetchPart } from "./forms.js";

const EVERY_MS = 2000;

async function refresh(part) {
  const fresh = await fetchPart(part.dataset.rebuild, ".rebuild");
  if (!fresh || !part.isConnected) return;
  const before = part.querySelector("pre.log");
  const wasAtEnd = !before || before.scrollHeight - before.scrollTop - before.clientHeight < 40;
  const top = before ? before.scrollTop : 0;
  const wasClosed = before && !before.closest("details").open;
  part.replaceWith(fresh);
  const log = fresh.querySelector("pre.log");
  if (!log) return;
  if (wasClosed) log.closest("details").open = false;
  log.scrollTop = wasAtEnd ? log.scrollHeight : top;
}

let isAtIt = false;

setInterval(async () => {
  const parts = document.querySelectorAll(".rebuild[data-open]");
  if (isAtIt || !parts.length || document.hidden) return;
  isAtIt = true;
  await Promise.allSettled([...parts].map(refresh));
  isAtIt = false;
}, EVERY_MS);
