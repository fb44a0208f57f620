from django.apps import AppConfig


class SuperviseConfig(AppConfig):
    name = "supervise"
    verbose_name = "Supervise"

    def ready(self) -> None:
        """Register the kinds in the order in which agents and operators see them."""
        from supervise.kinds.capability_block import CapabilityBlock  # noqa: PLC0415 - models come first
        from supervise.kinds.egress_block import EgressBlock  # noqa: PLC0415
        from supervise.kinds.mcp_tool import McpTool  # noqa: PLC0415
        from supervise.kinds.pipelock_block import PipelockBlock  # noqa: PLC0415
        from supervise.proposals.kind import register  # noqa: PLC0415

        for kind in (EgressBlock(), PipelockBlock(), CapabilityBlock(), McpTool()):
            register(kind)
