// Preloaded into the conformance suite, which has no option for headers: adds the bottle's token
// (MCP_AUTHORIZATION) to every request, whether made by fetch, undici or node:http.
"use strict";
const { subscribe } = require("node:diagnostics_channel");

const authorization = process.env.MCP_AUTHORIZATION;
if (!authorization) throw new Error("authorize.cjs: set MCP_AUTHORIZATION");

subscribe("undici:request:create", ({ request }) => request.addHeader("authorization", authorization));
subscribe("http.client.request.created", ({ request }) => request.setHeader("authorization", authorization));
