"""GET `argv[1]`; the proxy and the authorities come from the environment."""

import asyncio
import json
import sys

import aiohttp


async def get(url: str) -> dict[str, object]:
    limit = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(trust_env=True, timeout=limit) as session, session.get(url) as answer:
        return {"status": answer.status, "body": await answer.text()}


sys.stdout.write(json.dumps(asyncio.run(get(sys.argv[1]))))
