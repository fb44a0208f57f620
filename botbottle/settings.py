"""Django settings. Every setting is an environment variable in the README's configuration table."""

from __future__ import annotations

import sys
from pathlib import Path

from botbottle.core import environment, home
from egress.contract import sharding

BASE_DIR = Path(__file__).resolve().parent.parent

# --- Where state lives
BOTTLE_HOME = home.prepare(Path(environment.text("BOTTLE_HOME", "~/.bot-bottle")).expanduser())
BOTTLE_MANIFESTS = Path(environment.text("BOTTLE_MANIFESTS") or BOTTLE_HOME / "bottles").expanduser()
# Where managed MCP servers' files may be staged from, separated by commas; empty: the manifest's directory.
BOTTLE_SERVER_ROOTS = [str(Path(root).expanduser()) for root in environment.words("BOTTLE_SERVER_ROOTS")]
SECRET_KEY_IS_GIVEN = bool(environment.text("SECRET_KEY"))
SECRET_KEY = environment.text("SECRET_KEY") or home.secret_key(BOTTLE_HOME)
DATABASES = {"default": environment.database("DATABASE_URL", BOTTLE_HOME / "bot-bottle.sqlite3")}
if DATABASES["default"]["ENGINE"] == environment.SQLITE:
    # Where psycopg is installed, REST framework loads it for PostgreSQL fields that we do not use.
    sys.modules.setdefault("django.contrib.postgres", None)  # type: ignore[arg-type]
REDIS_URL = environment.text("REDIS_URL")
if REDIS_URL and not REDIS_URL.startswith(("redis://", "rediss://", "unix://")):
    raise environment.BadSetting("REDIS_URL must look like redis://host:6379/0 (or rediss://, unix://).")

# --- The two planes
SUPERVISE_BIND = environment.text("SUPERVISE_BIND", "127.0.0.1")
SUPERVISE_PORT = environment.port("SUPERVISE_PORT", 9100)
SUPERVISE_HOSTS = environment.host_names("SUPERVISE_HOSTS")
CONSOLE_BIND = environment.text("CONSOLE_BIND", "127.0.0.1")
CONSOLE_PORT = environment.port("CONSOLE_PORT", 8000)
CONSOLE_HOSTS = environment.words("CONSOLE_HOSTS")
CONSOLE_URL = environment.text("CONSOLE_URL").rstrip("/")  # how operators' browsers reach it, for links
if CONSOLE_URL and not CONSOLE_URL.startswith(("https://", "http://")):
    raise environment.BadSetting("CONSOLE_URL must look like https://console.example.com.")
EGRESS_BIND = environment.text("EGRESS_BIND", "127.0.0.1")
EGRESS_PORT = environment.port("EGRESS_PORT", 9101)
# Off where no egress process shares this home: then a published table of this home's bottles counts as live.
EGRESS_PROXY = environment.flag("EGRESS_PROXY", default=True)
EGRESS_PROCESSES = sharding.configured("EGRESS_PROCESSES")  # unless a running proxy says otherwise
EGRESS_RECORD_DAYS = environment.whole_number("EGRESS_RECORD_DAYS", 14, at_least=1, at_most=3650)
WEB_WORKERS = environment.whole_number("WEB_WORKERS", 1, at_least=1, at_most=64)

# --- Asking and deciding
SUPERVISE_DEBUG = environment.flag("SUPERVISE_DEBUG")
SUPERVISE_RESPONSE_TIMEOUT_SECONDS = environment.seconds("SUPERVISE_RESPONSE_TIMEOUT_SECONDS", 30)
SUPERVISE_PROPOSAL_TTL_SECONDS = environment.seconds("SUPERVISE_PROPOSAL_TTL_SECONDS", 7 * 24 * 3600)
SUPERVISE_MAX_PENDING = environment.whole_number("SUPERVISE_MAX_PENDING", 500, at_least=1, at_most=10**6)
SUPERVISE_MAX_PER_MINUTE = environment.whole_number(
    "SUPERVISE_MAX_PER_MINUTE", 3000, at_least=1, at_most=10**6
)
SUPERVISE_MAX_WAITING = environment.whole_number("SUPERVISE_MAX_WAITING", 1000, at_least=1, at_most=10**6)
SUPERVISE_QUORUM = environment.whole_number("SUPERVISE_QUORUM", 1, at_least=1, at_most=9)
SUPERVISE_MAX_BODY_BYTES = 1024 * 1024
CONSOLE_MAX_BODY_BYTES = 8 * 1024 * 1024

# --- Django
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]", *CONSOLE_HOSTS]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "botbottle",
    "egress",
    "supervise",
]
MIDDLEWARE = [
    # Outermost: the agent plane leaves the chain here and never sees sessions, cookies or the console.
    "botbottle.web.middleware.separate_planes",
    "django.middleware.security.SecurityMiddleware",
    "botbottle.web.middleware.content_security_policy",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "supervise.access.login.limited_sessions",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "botbottle.urls"
AGENT_URLCONF = "supervise.mcp.urls"
ASGI_APPLICATION = "botbottle.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "supervise.disk.notice.context",
            ],
        },
    }
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True  # no collectstatic step: the files in the checkout are the files served
WHITENOISE_AUTOREFRESH = False

AUTHENTICATION_BACKENDS = ["supervise.access.login.ThrottledBackend"]
PASSWORD_HASHERS = [  # the first one makes new hashes; it needs memory, which limits parallel guessing
    "django.contrib.auth.hashers.ScryptPasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
]
LOGIN_URL = "admin:login"
LOGIN_REDIRECT_URL = "queue"
# Cookies ignore ports: unique names keep other servers on this host from overwriting them.
SESSION_COOKIE_NAME = "bot_bottle_session"
# A link in a chat leads to the card it names. No GET changes anything, and every form carries a token.
SESSION_COOKIE_SAMESITE = "Lax"
CONSOLE_IDLE_SECONDS = environment.seconds("CONSOLE_IDLE_SECONDS", 2 * 3600)
CONSOLE_SESSION_SECONDS = environment.seconds("CONSOLE_SESSION_SECONDS", 12 * 3600)
SESSION_COOKIE_AGE = int(CONSOLE_IDLE_SECONDS)
CSRF_COOKIE_NAME = "bot_bottle_csrf"
CSRF_COOKIE_SAMESITE = "Strict"
CSRF_COOKIE_HTTPONLY = True
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in CONSOLE_HOSTS]
SECURE_COOKIES = environment.flag("CONSOLE_HTTPS")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_COOKIES
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if SECURE_COOKIES else None

# --- Signing in through an identity provider: off unless OIDC_ISSUER is set
OIDC_ISSUER = environment.text("OIDC_ISSUER").rstrip("/")
OIDC_RP_CLIENT_ID = environment.text("OIDC_CLIENT_ID")
OIDC_RP_CLIENT_SECRET = environment.text("OIDC_CLIENT_SECRET")
OIDC_RP_SCOPES = environment.text("OIDC_SCOPES", "openid email profile")
OIDC_RP_SIGN_ALGO = "RS256"
OIDC_USE_PKCE = True
OIDC_TIMEOUT = 10
OIDC_GROUPS_CLAIM = environment.text("OIDC_GROUPS_CLAIM", "groups")
OIDC_ROLE_GROUPS = {  # our group: the provider's
    role: group
    for role in ("viewer", "operator", "admin")
    if (group := environment.text(f"OIDC_{role.upper()}_GROUP"))
}
if OIDC_ISSUER:
    AUTHENTICATION_BACKENDS.append("supervise.access.oidc.OidcBackend")

X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
DATA_UPLOAD_MAX_MEMORY_SIZE = CONSOLE_MAX_BODY_BYTES

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "supervise.access.api_keys.ApiKeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "bot-bottle operator API",
    "DESCRIPTION": "Read the queue and decide proposals from scripts and chat bots.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "PREPROCESSING_HOOKS": ["supervise.api.schema.describe"],
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
}

CHANNEL_LAYERS = {
    "default": (
        # The pub/sub layer wakes thousands at once; the list-based one loses messages when its pool runs dry.
        {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [REDIS_URL]}}
        if REDIS_URL
        else {
            "BACKEND": "channels.layers.InMemoryChannelLayer",
            # Its groups forget members after a day unless told otherwise; the hub stays subscribed for good.
            "CONFIG": {"capacity": 100_000, "group_expiry": 10**10},
        }
    )
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"},
        "bare": {"format": "%(message)s"},
    },
    "filters": {"database_faults": {"()": "botbottle.database.fault_log.OneLineAMinute"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["database_faults"]},
        "access": {"class": "logging.StreamHandler", "formatter": "bare"},
    },
    "root": {"handlers": ["stderr"], "level": "DEBUG" if SUPERVISE_DEBUG else "WARNING"},
    "loggers": {
        "supervise.access": {"handlers": ["access"], "level": "INFO", "propagate": False},
        "botbottle": {"level": "INFO"},
        # A refused request is an answer, not a server error: the access log has it already.
        "django.request": {"level": "ERROR"},
    },
}
