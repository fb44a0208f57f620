"""The live queue's websocket."""
from channels.generic.websocket import AsyncJsonWebsocketConsumer


class QueueConsumer(AsyncJsonWebsocketConsumer):
    async def connect(self) -> None:
        await self.close()
