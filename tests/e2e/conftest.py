"""No suite may leave a secret in a log."""

from support.secrets_in_logs import logs_without_secrets as logs_without_secrets
