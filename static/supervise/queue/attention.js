// The count in the title and the icon; optional notifications and sound. None of them contains an agent's text.
const notify = document.getElementById("notify");
const sound = document.getElementById("sound");
const NAME = "bot-bottle.";
let shown = null;
let audio = null;

const isOn = (button) => button.getAttribute("aria-pressed") === "true";

function toggle(button, key, isPressed) {
  button.setAttribute("aria-pressed", String(isPressed));
  try {
    localStorage.setItem(NAME + key, isPressed ? "1" : "");
  } catch {
    // A browser without storage forgets the choice.
  }
}

function remembered(key) {
  try {
    return localStorage.getItem(NAME + key) === "1";
  } catch {
    return false;
  }
}

if ("Notification" in window) {
  notify.hidden = false;
  toggle(notify, "notify", remembered("notify") && Notification.permission === "granted");
  notify.addEventListener("click", async () => {
    const wants = !isOn(notify);
    toggle(notify, "notify", wants && (await Notification.requestPermission()) === "granted");
  });
}
sound.hidden = false;
toggle(sound, "sound", remembered("sound"));
sound.addEventListener("click", () => {
  toggle(sound, "sound", !isOn(sound));
  if (isOn(sound)) beep();
});

function beep() {
  audio = audio || new AudioContext();
  const [tone, volume] = [audio.createOscillator(), audio.createGain()];
  tone.frequency.value = 660;
  volume.gain.setValueAtTime(0.08, audio.currentTime);
  volume.gain.exponentialRampToValueAtTime(0.0001, audio.currentTime + 0.3);
  tone.connect(volume).connect(audio.destination);
  tone.start();
  tone.stop(audio.currentTime + 0.3);
}

function tell(counts) {
  if (isOn(sound)) beep();
  if (!isOn(notify) || !document.hidden || Notification.permission !== "granted") return;
  const many = `${counts.pending} proposal${counts.pending > 1 ? "s" : ""} wait${counts.pending > 1 ? "" : "s"}`;
  const body = counts.high ? `${many}, ${counts.high} of high risk` : many;
  const note = new Notification("bot-bottle", { body, tag: "bot-bottle-queue" });
  note.addEventListener("click", () => {
    window.focus();
    note.close();
  });
}

const icon = document.querySelector("link[rel=icon]");
const picture = new Image();
const plain = document.getElementById("connection").dataset.icon;

function drawIcon(count) {
  if (!icon || !picture.complete) return;
  if (!count) return void (icon.href = plain);
  const canvas = Object.assign(document.createElement("canvas"), { width: 64, height: 64 });
  const pen = canvas.getContext("2d");
  pen.drawImage(picture, 0, 0, 64, 64);
  pen.fillStyle = "#b3261e";
  pen.beginPath();
  pen.arc(44, 44, 20, 0, 7);
  pen.fill();
  pen.fillStyle = "#fff";
  pen.font = `bold ${count > 9 ? 24 : 30}px sans-serif`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(count > 99 ? "99" : String(count), 44, 46);
  icon.href = canvas.toDataURL("image/png");
}
picture.addEventListener("load", () => drawIcon(shown || 0));
picture.src = plain;

export function showPending(counts) {
  const wasLess = shown !== null && counts.pending > shown;
  if (counts.pending !== shown) {
    shown = counts.pending;
    document.title = document.title.replace(/^(\(\d+\) )?/, shown ? `(${shown}) ` : "");
    drawIcon(shown);
  }
  if (wasLess) tell(counts);
}
