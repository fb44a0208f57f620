"""Made-up credentials of every kind, put together when they are needed: none stands in a file."""

from __future__ import annotations

import itertools

_MIXED = "aZ3kQ9xB7mT2pW5rL8cV4nH6yD1sF0gJ"


def mixed(count: int, alphabet: str = _MIXED) -> str:
    return "".join(itertools.islice(itertools.cycle(alphabet), count))


def hexes(count: int) -> str:
    return mixed(count, "0f3a9c5e7b1d")


def upper(count: int) -> str:
    return mixed(count, "Q7KZ2XMB5R")


def letters(count: int) -> str:
    return mixed(count, "aZkQxBmTpWrLcVnH")


def digits(count: int) -> str:
    return mixed(count, "4815162342")


def private_key(kind: str = "RSA ") -> str:
    return f"-----BEGIN {kind}PRIVATE" + f" KEY-----\n{mixed(64)}"


# One character less, or another in its place, and it is none.
EXAMPLES: dict[str, str] = {
    "github-token": "ghp_" + mixed(36),
    "github-fine-grained-token": "github_pat_" + mixed(22) + "_" + mixed(59),
    "gitlab-token": "glpat-" + mixed(20),
    "bitbucket-app-password": "ATBB" + mixed(32),
    "atlassian-token": "ATATT3" + mixed(50),
    "npm-token": "npm_" + mixed(36),
    "pypi-token": "pypi-AgE" + mixed(50),
    "rubygems-token": "rubygems_" + hexes(48),
    "nuget-key": "oy2" + mixed(43, "a3k9x7m2"),
    "docker-hub-token": "dckr_pat_" + mixed(27),
    "buildkite-token": "bkua_" + hexes(40),
    "circleci-token": "CCIPAT_" + mixed(22) + "_" + hexes(40),
    "sonar-token": "squ_" + hexes(40),
    "linear-key": "lin_api_" + mixed(40),
    "postman-key": "PMAK-" + hexes(24) + "-" + hexes(34),
    "aws-key-id": "AKIA" + upper(16),
    "aws-bedrock-key": "ABSK" + mixed(109),
    "google-api-key": "AIza" + mixed(35),
    "google-oauth-token": "ya29." + mixed(20),
    "google-oauth-secret": "GOCSPX-" + mixed(28),
    "azure-client-secret": "abc8Q~" + mixed(34),
    "digitalocean-token": "dop_v1_" + hexes(64),
    "heroku-key": "HRKU-AA" + mixed(58),
    "cloudflare-origin-key": "v1.0-" + hexes(24) + "-" + hexes(146),
    "cloudflare-token": "cfut_" + mixed(40) + hexes(8),
    "terraform-token": mixed(14) + ".atlasv1." + mixed(60),
    "vault-token": "hvs." + mixed(24),
    "doppler-token": "dp.pt." + mixed(40),
    "pulumi-token": "pul-" + hexes(40),
    "tailscale-key": "tskey-auth-" + mixed(16) + "-" + mixed(20),
    "netlify-token": "nfp_" + mixed(36),
    "planetscale-token": "pscale_tkn_" + mixed(32),
    "databricks-token": "dapi" + hexes(32),
    "supabase-token": "sbp_" + hexes(40),
    "onepassword-token": "ops_eyJ" + mixed(200),
    "openai-key": "sk-proj-" + mixed(40) + "T3BlbkFJ" + mixed(20),
    "anthropic-key": "sk-ant-api03-" + mixed(80),
    "openrouter-key": "sk-or-v1-" + hexes(64),
    "hugging-face-token": "hf_" + letters(34),
    "groq-key": "gsk_" + mixed(52),
    "replicate-token": "r8_" + mixed(37),
    "xai-key": "xai-" + mixed(80),
    "perplexity-key": "pplx-" + mixed(48),
    "langsmith-key": "lsv2_pt_" + hexes(32) + "_" + hexes(10),
    "slack-token": "xoxb-" + digits(12) + "-" + mixed(11),
    "slack-app-token": "xapp-1-" + upper(10) + "-" + digits(12) + "-" + hexes(40),
    "telegram-bot-token": digits(9) + ":AA" + mixed(33),
    "discord-bot-token": "M" + mixed(23) + "." + mixed(6) + "." + mixed(27),
    "sendgrid-key": "SG." + mixed(22) + "." + mixed(43),
    "mailgun-key": "key-" + hexes(32),
    "mailchimp-key": hexes(32) + "-us1",
    "brevo-key": "xkeysib-" + hexes(64) + "-" + mixed(16),
    "twilio-key": "SK" + hexes(32),
    "stripe-key": "sk_live_" + mixed(24),
    "stripe-webhook-secret": "whsec_" + mixed(32),
    "square-token": "sq0atp-" + mixed(22),
    "shopify-token": "shpat_" + hexes(32),
    "easypost-key": "EZAK" + mixed(54),
    "notion-token": "ntn_" + digits(11) + mixed(35),
    "airtable-token": "pat" + mixed(14) + "." + hexes(64),
    "figma-token": "figd_" + mixed(40),
    "contentful-token": "CFPAT-" + mixed(43),
    "dropbox-token": "sl." + mixed(130),
    "mapbox-secret-token": "sk.eyJ" + mixed(60) + "." + mixed(22),
    "grafana-token": "glsa_" + mixed(32) + "_" + hexes(8),
    "new-relic-key": "NRAK-" + upper(27),
    "sentry-token": "sntryu_" + hexes(64),
    "dynatrace-token": "dt0c01." + upper(24) + "." + upper(64),
    "bottle-token": "bbt_" + mixed(43),
    "operator-api-key": "bbk_" + mixed(43),
    "aws-secret-key": "aws_secret_access_key = " + mixed(40),
    "fastly-token": "FASTLY_API_TOKEN=" + mixed(32),
    "azure-storage-key": "AccountKey=" + mixed(86) + "==",
    "azure-shared-access-key": "SharedAccessKey=" + mixed(43) + "=",
    "gcp-service-account-key": '"private_key_id": "' + hexes(40),
    "slack-webhook": "hooks.slack.com/services/T" + upper(9) + "/B" + upper(9) + "/" + mixed(18),
    "discord-webhook": "discord.com/api/webhooks/" + digits(18) + "/" + mixed(60),
    "jwt": "eyJ" + mixed(20) + ".eyJ" + mixed(40) + "." + mixed(16),
    "private-key": private_key()[:-32],
    "openssh-private-key": "b3BlbnNzaC1r" + "ZXktdjEA" + mixed(32),
    "putty-private-key": "PuTTY-User-Key-File-3:",
    "age-secret-key": "AGE-SECRET-KEY-1" + upper(58),
}
