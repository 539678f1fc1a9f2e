package devenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"google.golang.org/protobuf/types/known/durationpb"

	"refundgate/refund"
)

// TemporalOptions says how a private Temporal dev server is started.
type TemporalOptions struct {
	// Binary is the path of the temporal CLI. Empty looks for it on PATH, then
	// as .bin/temporal in the working directory and the ones above it.
	Binary string
	// DBFile keeps the server's state across runs. Empty keeps it in memory
	// and loses it when the server ends.
	DBFile string
	// Port and UIPort are the ports of the API and of the Web UI on 127.0.0.1.
	// 0 takes a free one.
	Port, UIPort int
	// Headless leaves the Web UI out.
	Headless bool
	// Log receives the server's own messages, warnings and worse. Nil drops
	// them.
	Log io.Writer
}

// Temporal is a private dev server with refundgate's search attributes, and
// with fairness keys that work: one partition per task queue, so that the two
// groups of an egress queue alternate.
type Temporal struct {
	server
	opts TemporalOptions
}

// DefaultNamespace is the namespace that every dev server has.
const DefaultNamespace = "default"

const (
	temporalStop = 10 * time.Second
	// portTries bounds how often a start picks new ports because another
	// process was quicker to take one.
	portTries = 3
	// devRetention is how long closed workflows stay visible.
	devRetention = 7 * 24 * time.Hour
)

const temporalMissing = "the temporal CLI is needed and was not found on PATH or in .bin; build it with " +
	"`make tools` or install it as https://docs.temporal.io/cli says"

var searchAttributes = map[string]enums.IndexedValueType{
	refund.AttributeStatus:  enums.INDEXED_VALUE_TYPE_KEYWORD,
	refund.AttributeAccount: enums.INDEXED_VALUE_TYPE_KEYWORD,
	refund.AttributeReview:  enums.INDEXED_VALUE_TYPE_KEYWORD,
	refund.AttributeOwner:   enums.INDEXED_VALUE_TYPE_KEYWORD,
	refund.AttributeOrder:   enums.INDEXED_VALUE_TYPE_KEYWORD,
	refund.AttributeTries:   enums.INDEXED_VALUE_TYPE_INT,
	refund.AttributeDue:     enums.INDEXED_VALUE_TYPE_DATETIME,
}

// StartTemporal starts a dev server and returns when it serves. The context
// bounds the start only.
func StartTemporal(ctx context.Context, opts TemporalOptions) (*Temporal, error) {
	var err error
	if opts.Binary == "" {
		if opts.Binary, err = findProgram([]string{"temporal"}, binDirs()...); err != nil {
			return nil, fmt.Errorf("%s: %w", temporalMissing, err)
		}
	}
	if opts.DBFile != "" {
		if err := os.MkdirAll(filepath.Dir(opts.DBFile), 0o700); err != nil {
			return nil, fmt.Errorf("starting Temporal: %w", err)
		}
	}
	for range portTries {
		t := &Temporal{opts: opts}
		if err = t.pickPorts(); err != nil {
			return nil, err
		}
		t.server = server{
			name:    "Temporal on " + t.HostPort(),
			log:     opts.Log,
			grace:   temporalStop,
			prepare: t.prepare,
			ready:   t.serves,
		}
		if opts.DBFile != "" {
			t.lockPath = opts.DBFile + ".lock"
		}
		if err = t.Start(ctx); err == nil {
			return t, nil
		}
		if ctx.Err() != nil || errors.Is(err, ErrInUse) {
			break
		}
	}
	return nil, err
}

// binDirs lists the .bin directories of the working directory and of all above
// it, the nearest first: that is where `make tools` puts the CLI.
func binDirs() []string {
	dir, err := os.Getwd()
	if err != nil {
		return nil
	}
	var dirs []string
	for {
		dirs = append(dirs, filepath.Join(dir, ".bin"))
		parent := filepath.Dir(dir)
		if parent == dir {
			return dirs
		}
		dir = parent
	}
}

// pickPorts replaces ports that are 0 by free ones and makes sure that the
// others are free.
func (t *Temporal) pickPorts() error {
	for _, port := range []*int{&t.opts.Port, &t.opts.UIPort} {
		l, err := net.Listen("tcp", loopback(*port))
		if err != nil {
			return fmt.Errorf("finding a port for Temporal: %w", err)
		}
		// Open until both are picked: they must differ.
		defer l.Close()
		*port = l.Addr().(*net.TCPAddr).Port
	}
	return nil
}

// prepare returns the server's command.
func (t *Temporal) prepare(context.Context) (*exec.Cmd, error) {
	return exec.Command(t.opts.Binary, t.flags()...), nil
}

func (t *Temporal) flags() []string {
	flags := []string{
		"server", "start-dev",
		"--ip=127.0.0.1",
		"--port=" + strconv.Itoa(t.opts.Port),
		"--log-level=warn",
		"--color=never",
		// What the user's own CLI is set up for is none of this server's business.
		"--disable-config-file", "--disable-config-env",
		// Fairness needs the new matcher, and orders tasks within a partition only.
		"--dynamic-config-value=matching.useNewMatcher=true",
		"--dynamic-config-value=matching.enableFairness=true",
		"--dynamic-config-value=matching.numTaskqueueReadPartitions=1",
		"--dynamic-config-value=matching.numTaskqueueWritePartitions=1",
	}
	if t.opts.Headless {
		flags = append(flags, "--headless")
	} else {
		flags = append(flags, "--ui-port="+strconv.Itoa(t.opts.UIPort))
	}
	if t.opts.DBFile != "" {
		flags = append(flags, "--db-filename="+t.opts.DBFile)
	}
	for name, kind := range searchAttributes {
		flags = append(flags, "--search-attribute="+name+"="+kind.String())
	}
	return flags
}

// serves tells whether the server knows its namespace and the Web UI, if any,
// listens.
func (t *Temporal) serves(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	c, err := t.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: DefaultNamespace})
	if err != nil || t.opts.Headless {
		return err
	}
	ui, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.uiHostPort())
	if err != nil {
		return err
	}
	return ui.Close()
}

// quiet drops the client's messages: until the server is up there is one for
// each try.
var quiet = log.NewStructuredLogger(slog.New(slog.DiscardHandler))

func (t *Temporal) dial(ctx context.Context) (client.Client, error) {
	return client.DialContext(ctx, client.Options{
		HostPort:  t.HostPort(),
		Namespace: DefaultNamespace,
		Logger:    quiet,
	})
}

// HostPort returns the address of the server's API. It stays the same across
// Stop and Start.
func (t *Temporal) HostPort() string { return loopback(t.opts.Port) }

// UIURL returns the address of the Web UI, or "" when there is none.
func (t *Temporal) UIURL() string {
	if t.opts.Headless {
		return ""
	}
	return "http://" + t.uiHostPort()
}

func (t *Temporal) uiHostPort() string { return loopback(t.opts.UIPort) }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// CreateNamespace creates a namespace with refundgate's search attributes. It
// can be used as soon as this returns. One that exists gets those it lacks.
func (t *Temporal) CreateNamespace(ctx context.Context, name string) error {
	c, err := t.dial(ctx)
	if err != nil {
		return fmt.Errorf("creating namespace %s: %w", name, err)
	}
	defer c.Close()
	_, err = c.WorkflowService().RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace:                        name,
		WorkflowExecutionRetentionPeriod: durationpb.New(devRetention),
	})
	var exists *serviceerror.NamespaceAlreadyExists
	if err != nil && !errors.As(err, &exists) {
		return fmt.Errorf("creating namespace %s: %w", name, err)
	}
	_, err = c.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace:        name,
		SearchAttributes: searchAttributes,
	})
	if err != nil {
		return fmt.Errorf("adding search attributes to namespace %s: %w", name, err)
	}
	return nil
}
