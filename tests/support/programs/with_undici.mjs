// GET argv[2] with undici; its dispatcher is told the proxy.
import { createRequire } from "node:module";

const { fetch, ProxyAgent } = createRequire(process.env.TOOLS_FOLDER + "/")("undici");
const dispatcher = new ProxyAgent(process.env.HTTPS_PROXY);
const answer = await fetch(process.argv[2], { dispatcher });
process.stdout.write(JSON.stringify({ status: answer.status, body: await answer.text() }));
await dispatcher.close();
