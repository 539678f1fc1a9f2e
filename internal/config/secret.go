package config

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// Secret is a value that must not be shown. However it is printed, logged or
// marshalled, it reads "[secret]"; only Reveal gives the value.
type Secret string

const redacted = "[secret]"

// Reveal returns the value itself.
func (s Secret) Reveal() string { return string(s) }

// Format implements fmt.Formatter, for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.shown()) }

// MarshalText implements encoding.TextMarshaler: JSON, YAML and slog use it.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown()), nil }

func (s Secret) shown() string {
	if s == "" {
		return ""
	}
	return redacted
}

// readSecret reads a secret from the environment variable or the file that is
// named, and returns an empty one if neither is. Something named but missing
// or empty is an error. A file's trailing newline is not part of the secret.
func readSecret(envName, file string, env func(string) string) (Secret, error) {
	switch {
	case envName != "":
		v := env(envName)
		if v == "" {
			return "", fmt.Errorf("the environment variable %s is empty or not set", envName)
		}
		return Secret(v), nil
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		v := strings.TrimRight(string(b), "\r\n")
		if v == "" {
			return "", fmt.Errorf("the file %s is empty", file)
		}
		return Secret(v), nil
	default:
		return "", nil
	}
}
