package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

func TestSecretIsNeverShown(t *testing.T) {
	t.Parallel()
	const value = "hunter2"
	cfg := Config{MySQL: MySQL{DSN: value}}
	var shown bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&shown, verb+" "+verb+"\n", cfg.MySQL.DSN, cfg)
	}
	require.NoError(t, json.NewEncoder(&shown).Encode(cfg.MySQL))
	b, err := yaml.Marshal(cfg.MySQL)
	require.NoError(t, err)
	shown.Write(b)
	slog.New(slog.NewJSONHandler(&shown, nil)).Info("m", "dsn", cfg.MySQL.DSN, "cfg", cfg.MySQL)
	slog.New(slog.NewTextHandler(&shown, nil)).Info("m", "dsn", cfg.MySQL.DSN, "cfg", cfg.MySQL)

	require.NotContains(t, shown.String(), value)
	require.NotContains(t, shown.String(), fmt.Sprintf("%x", value))
	require.Contains(t, shown.String(), redacted)
	require.Equal(t, value, cfg.MySQL.DSN.Reveal())
	require.Empty(t, fmt.Sprint(Secret("")), "an empty secret shows that it is empty")
}

func TestAPIKey(t *testing.T) {
	t.Parallel()
	env := func(k string) string { return map[string]string{"KEY": "from-env"}[k] }

	key, err := Account{Name: "main", APIKeyEnv: "KEY"}.APIKey(env)
	require.NoError(t, err)
	require.Equal(t, "from-env", key.Reveal())

	key, err = Account{Name: "main", APIKeyFile: write(t, "from-file\n")}.APIKey(env)
	require.NoError(t, err)
	require.Equal(t, "from-file", key.Reveal())

	_, err = Account{Name: "main"}.APIKey(env)
	require.EqualError(t, err, "accounts.main has no API key; set api_key_env or api_key_file")
	_, err = Account{Name: "main", APIKeyEnv: "OTHER"}.APIKey(env)
	require.EqualError(t, err, "accounts.main: reading the API key: the environment variable OTHER is empty or not set")
	_, err = Account{Name: "main", APIKeyFile: write(t, "\n")}.APIKey(env)
	require.ErrorContains(t, err, "is empty")
}

func TestNotificationSecrets(t *testing.T) {
	t.Parallel()
	env := func(k string) string { return map[string]string{"OLD": "from-env"}[k] }
	sources := []SecretSource{{Env: "OLD"}, {File: write(t, "from-file\n")}}

	secrets, err := Account{Name: "main", NotificationSecrets: sources}.ReadNotificationSecrets(env)
	require.NoError(t, err)
	require.Equal(t, []Secret{"from-env", "from-file"}, secrets)

	secrets, err = Account{Name: "main"}.ReadNotificationSecrets(env)
	require.NoError(t, err)
	require.Empty(t, secrets)
	_, err = Account{Name: "main", NotificationSecrets: append(sources, SecretSource{Env: "NEXT"})}.ReadNotificationSecrets(env)
	require.EqualError(t, err, "accounts.main.notification_secrets[2]: the environment variable NEXT is empty or not set")
}
