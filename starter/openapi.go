package starter

import (
	_ "embed"
	"net/http"
)

// openAPIPath is where the API's own description is.
const openAPIPath = "/openapi.yaml"

// openAPIDocument describes the API for those who call it, in OpenAPI 3.1. A
// test holds it against what the handlers do.
//
//go:embed openapi.yaml
var openAPIDocument []byte

// openAPI answers with the API's description. Whoever may not call the API may
// still read how one would.
func openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(openAPIDocument) // a client that is gone by then misses it
}
