// Package prom is what the processes' metrics have in common: the registry of
// a process, what the Temporal SDK measures, and the page for Prometheus.
package prom

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// NewProcess returns a registry with what the Go runtime and the operating
// system say about this process.
func NewProcess() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// maxScrapes is how many scrapes are answered at a time: those of a pair of
// servers, and people. The page needs no token, so it must not be able to load
// what is behind it.
const maxScrapes = 4

// Handler serves what the sources hold, merged. A source that fails costs its
// own metrics and a line in the log, never the page.
func Handler(log *slog.Logger, sources ...prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers(sources), promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
	})
}
