// GET argv[2] with Node's own fetch; NODE_USE_ENV_PROXY=1 makes it read HTTPS_PROXY.
const answer = await fetch(process.argv[2]);
process.stdout.write(JSON.stringify({ status: answer.status, body: await answer.text() }));
