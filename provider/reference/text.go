package reference

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxText bounds a text of the provider's that is shown or stored, in bytes.
const maxText = 64

// clean makes a text of the provider's showable: without our secrets, without
// control characters, short.
func clean(s string, secrets ...string) string {
	for _, secret := range secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "***")
		}
	}
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return cut(s, maxText)
}

// cleanCode makes a code of the provider's storable. One as the contract has
// them passes unchanged.
func cleanCode(s string, secrets ...string) string {
	return strings.ReplaceAll(clean(s, secrets...), " ", "_")
}

// failureCode is the code of a failed refund, which may come without one.
func failureCode(s string, secrets ...string) string {
	if s == "" {
		return statusFailed
	}
	return cleanCode(s, secrets...)
}

// cut shortens s to at most n bytes, between two characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
