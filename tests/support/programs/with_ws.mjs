// Send three messages to argv[2] with ws and get them back, through HTTPS_PROXY.
import { createRequire } from "node:module";

const packages = createRequire(process.env.TOOLS_FOLDER + "/");
const { WebSocket } = packages("ws");
const { HttpsProxyAgent } = packages("https-proxy-agent");

const messages = ["hello", Buffer.from([0, 255, 0, 255]), "x".repeat(200_000)];
const same = [];
const tell = (told) => process.stdout.write(JSON.stringify(told), () => process.exit(0));
const socket = new WebSocket(process.argv[2], { agent: new HttpsProxyAgent(process.env.HTTPS_PROXY) });
socket.on("open", () => socket.send(messages[0]));
socket.on("message", (data) => {
  same.push(Buffer.from(messages[same.length]).equals(data));
  if (same.length < messages.length) socket.send(messages[same.length]);
  else socket.close();
});
socket.on("close", () => tell({ same }));
socket.on("unexpected-response", (_, answer) => {
  let body = "";
  answer.on("data", (data) => (body += data));
  answer.on("end", () => tell({ status: answer.statusCode, body }));
});
