"""The shapes of well-known credentials as data: one kind and one expression each, for `egress.dlp`.

An expression needs enough of a credential's own marks (prefix, alphabet, length) to stay silent on ordinary
text, source code, identifiers and encoded data. It must be one that Hyperscan can compile: no look-around.
"""

from __future__ import annotations

# A value starts where a word does. Text inside JSON or a URL puts an escape there instead: `\n`, `%3D`.
_START = r"(?:\b|\\[nrt]|\\u00[0-9A-Fa-f]{2}|%[0-9A-Fa-f]{2})"
_BREAK = r"(?:\s|\\[rn]|%0[AaDd]|\+)"

# A prefix that the issuer chose, then a body of known length.
_WORDS: dict[str, str] = {
    # code hosting and building
    "github-token": r"gh[pousr]_[A-Za-z0-9]{36}\b",
    "github-fine-grained-token": r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}\b",
    "gitlab-token": r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|agent)-[A-Za-z0-9_-]{20}",
    "bitbucket-app-password": r"ATBB[A-Za-z0-9]{32}\b",
    "atlassian-token": r"AT(?:ATT|CTT)3[A-Za-z0-9_=-]{50}",
    "npm-token": r"npm_[A-Za-z0-9]{36}\b",
    "pypi-token": r"pypi-AgE[A-Za-z0-9_-]{50}",
    "rubygems-token": r"rubygems_[0-9a-f]{48}\b",
    "nuget-key": r"oy2[a-z0-9]{43}\b",
    "docker-hub-token": r"dckr_[po]at_[A-Za-z0-9_-]{27}",
    "buildkite-token": r"bkua_[0-9a-f]{40}\b",
    "circleci-token": r"CCI(?:PAT|PRJ)_[A-Za-z0-9]{22}_[0-9a-f]{40}\b",
    "sonar-token": r"sq[apu]_[0-9a-f]{40}\b",
    "linear-key": r"lin_(?:api|oauth)_[A-Za-z0-9]{40}",
    "postman-key": r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}\b",
    # clouds and infrastructure
    "aws-key-id": r"(?:AKIA|ASIA)[A-Z2-7]{16}\b",
    "aws-bedrock-key": r"ABSK[A-Za-z0-9+/]{109}",
    "google-api-key": r"AIza[0-9A-Za-z_-]{35}",
    "google-oauth-token": r"ya29\.[0-9A-Za-z_-]{20}",
    "google-oauth-secret": r"GOCSPX-[A-Za-z0-9_-]{28}",
    "azure-client-secret": r"[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{34}\b",
    "digitalocean-token": r"do[opr]_v1_[0-9a-f]{64}\b",
    "heroku-key": r"HRKU-AA[A-Za-z0-9_-]{58}",
    "cloudflare-origin-key": r"v1\.0-[0-9a-f]{24}-[0-9a-f]{146}\b",
    "cloudflare-token": r"cf(?:ut|at|k)_[A-Za-z0-9]{40}[0-9a-f]{8}\b",
    "terraform-token": r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60}",
    "vault-token": r"hv[sbr]\.[A-Za-z0-9_-]{24}",
    "doppler-token": r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9.]{40}",
    "pulumi-token": r"pul-[0-9a-f]{40}\b",
    "tailscale-key": r"tskey-[a-z]+-[A-Za-z0-9]{12,20}-[A-Za-z0-9]{20}",
    "netlify-token": r"nfp_[A-Za-z0-9]{36}\b",
    "planetscale-token": r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.-]{32}",
    "databricks-token": r"dapi[0-9a-f]{32}\b",
    "supabase-token": r"(?:sbp_[0-9a-f]{40}\b|sb_secret_[A-Za-z0-9_-]{31})",
    "onepassword-token": r"ops_eyJ[A-Za-z0-9_-]{200}",
    # models
    "openai-key": r"sk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,120}T3BlbkFJ[A-Za-z0-9_-]{20}",
    "anthropic-key": r"sk-ant-[a-z]{3,5}[0-9]{2}-[A-Za-z0-9_-]{80}",
    "openrouter-key": r"sk-or-v1-[0-9a-f]{64}\b",
    "hugging-face-token": r"(?:hf_|api_org_)[A-Za-z]{34}\b",
    "groq-key": r"gsk_[A-Za-z0-9]{52}\b",
    "replicate-token": r"r8_[A-Za-z0-9]{37}\b",
    "xai-key": r"xai-[A-Za-z0-9]{80}\b",
    "perplexity-key": r"pplx-[A-Za-z0-9]{48}\b",
    "langsmith-key": r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}\b",
    # messages and payments
    "slack-token": r"xox[abeoprs](?:\.xox[bp])?-[0-9A-Za-z-]{24}",
    "slack-app-token": r"xapp-[0-9]-[A-Z0-9]{8,15}-[0-9]{8,16}-[0-9a-f]{40}",
    "telegram-bot-token": r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}\b",
    "discord-bot-token": r"[MNO][A-Za-z0-9]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27}",
    "sendgrid-key": r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}",
    "mailgun-key": r"key-[0-9a-f]{32}\b",
    "mailchimp-key": r"[0-9a-f]{32}-us[0-9]{1,2}\b",
    "brevo-key": r"xkeysib-[0-9a-f]{64}-[A-Za-z0-9]{16}\b",
    "twilio-key": r"SK[0-9a-f]{32}\b",
    "stripe-key": r"[sr]k_(?:live|prod)_[0-9A-Za-z]{24}",
    "stripe-webhook-secret": r"whsec_[A-Za-z0-9+/]{32}",
    "square-token": r"sq0(?:atp|csp)-[A-Za-z0-9_-]{22}",
    "shopify-token": r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b",
    "easypost-key": r"EZ[AT]K[A-Za-z0-9]{54}\b",
    # work and data
    "notion-token": r"(?:ntn_[0-9]{11}[A-Za-z0-9]{35}|secret_[A-Za-z0-9]{43})\b",
    "airtable-token": r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}\b",
    "figma-token": r"fig[dour]_[A-Za-z0-9_-]{40}",
    "contentful-token": r"CFPAT-[A-Za-z0-9_-]{43}",
    "dropbox-token": r"sl\.(?:u\.)?[A-Za-z0-9_-]{130}",
    "mapbox-secret-token": r"sk\.eyJ[A-Za-z0-9_-]{60,200}\.[A-Za-z0-9_-]{22}",
    # watching
    "grafana-token": r"(?:glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}\b|glc_eyJ[A-Za-z0-9+/=]{32})",
    "new-relic-key": r"NRAK-[A-Z0-9]{27}\b",
    "sentry-token": r"(?:sntrys_eyJ[A-Za-z0-9+/=_-]{50}|sntryu_[0-9a-f]{64}\b)",
    "dynatrace-token": r"dt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}\b",
    # our own
    "bottle-token": r"bbt_[A-Za-z0-9_-]{43}",
    "operator-api-key": r"bbk_[A-Za-z0-9_-]{43}",
}

# Known by their context, or by a form that many issuers share.
_FORMS: dict[str, str] = {
    "aws-secret-key": (
        r"(?i:aws_?secret_?(?:access_?)?key)[\"'\\ ]{0,4}[=:][\"'\\ ]{0,4}"
        r"[A-Za-z0-9/+]{40}(?:[^A-Za-z0-9/+=]|\z)"
    ),
    "fastly-token": (
        r"(?i:fastly[_-]?(?:api[_-]?)?(?:key|token))[\"'\\ ]{0,4}[=:][\"'\\ ]{0,4}[A-Za-z0-9_-]{32}\b"
    ),
    "azure-storage-key": r"AccountKey=[A-Za-z0-9+/]{86}==",
    "azure-shared-access-key": r"SharedAccessKey=[A-Za-z0-9+/]{43}=",
    "gcp-service-account-key": r"private_key_id[\"'\\ ]{1,4}:[\"'\\ ]{1,4}[0-9a-f]{40}\b",
    "slack-webhook": (
        r"hooks\.slack\.com/(?:services|workflows)/T[A-Z0-9]{8,12}/[AB][A-Z0-9]{8,12}/[A-Za-z0-9]{18}"
    ),
    "discord-webhook": r"discord(?:app)?\.com/api/webhooks/[0-9]{17,20}/[A-Za-z0-9_-]{60}",
    "jwt": _START + r"eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16}",
    "private-key": (
        r"-----BEGIN[ +](?:[A-Z0-9]{2,9}[ +]){0,2}PRIVATE[ +]KEY(?:[ +]BLOCK)?-----"
        + _BREAK + r"{1,8}(?:[A-Za-z0-9+/]{32}|Proc-Type|Version:|Comment:)"
    ),
    "openssh-private-key": r"b3BlbnNzaC1rZXktdjEA[A-Za-z0-9+/]{32}",
    "putty-private-key": r"PuTTY-User-Key-File-[23]:",
    "age-secret-key": r"AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{58}",
}  # fmt: skip

SHAPES: dict[str, str] = {kind: _START + word for kind, word in _WORDS.items()} | _FORMS

# Phrases by which a page tries to give orders to an agent that reads it. Case is ignored.
_SPACE = r"[\s_*]{1,3}"
INJECTIONS: tuple[str, ...] = tuple(
    phrase.replace(" ", _SPACE)
    for phrase in (
        r"(?:ignore|disregard|forget|override) (?:all |any )?(?:of )?(?:the |your |my )?"
        r"(?:previous|prior|above|earlier|preceding|original) (?:instructions|prompts?|rules|directions)",
        r"(?:ignore|disregard|override) (?:your|the) (?:system prompt|instructions|guidelines|safety rules)",
        r"(?:reveal|print|repeat|output|show) (?:me )?your (?:system prompt|(?:initial|hidden) instructions)",
        r"you are (?:now|no longer) (?:in )?(?:an? )?(?:developer mode|jailbroken|dan|unrestricted|bound by)",
        r"new (?:system )?instructions(?: for| to) (?:the )?(?:ai|assistant|agent|model|llm)",
        r"(?:do not|don't|never) (?:tell|inform|mention this to|alert) the (?:user|operator|human|developer)",
        r"(?:send|post|upload|exfiltrate|leak) (?:all |the |your |any )*"
        r"(?:api keys?|credentials|secrets|environment variables|tokens|ssh keys?) to",
        r"<\|im_start\|>system",
        r"\[/?INST\]|<</?SYS>>",
        r"(?:begin|start) (?:of )?(?:admin|system) (?:override|prompt|message)",
    )
)
