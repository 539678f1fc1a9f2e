// Package testenv gives tests the real servers and the real program. The
// first test that asks starts a server, the other tests of the same process
// share it, each with a database or namespace of its own, and Main stops it:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// A test whose server is missing on the machine fails and says what to
// install; it is never skipped.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"refundgate/internal/devenv"
)

// shared holds what lives as long as the test process.
var shared struct {
	mu      sync.Mutex
	inMain  bool
	closes  []func() error // called in reverse order
	servers []server
}

// server is one of devenv's.
type server interface {
	Died() error
	Done() <-chan struct{}
	Kill() error
}

// Main runs the package's tests, stops what they shared and exits. A shared
// server that has ended by itself fails the run: whatever failed since then may
// have failed for that alone.
func Main(m *testing.M) {
	shared.mu.Lock()
	shared.inMain = true
	shared.mu.Unlock()

	code := m.Run()
	if err := died(); err != nil {
		fmt.Fprint(os.Stderr, loud(err))
		code = max(code, 1)
	}
	if err := closeShared(); err != nil {
		fmt.Fprintf(os.Stderr, "cleaning up after the tests: %v\n", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func closeShared() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	var errs []error
	for i := len(shared.closes) - 1; i >= 0; i-- {
		errs = append(errs, shared.closes[i]())
	}
	return errors.Join(errs...)
}

// atEnd has Main call close, before those registered earlier.
func atEnd(closeIt func() error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.closes = append(shared.closes, closeIt)
}

// share has Main end the server, and tells at once if it ends before.
func share(s server) {
	atEnd(s.Kill) // its data goes too: no need to be gentle
	shared.mu.Lock()
	shared.servers = append(shared.servers, s)
	shared.mu.Unlock()
	done := s.Done()
	go func() {
		<-done
		if err := s.Died(); err != nil {
			fmt.Fprint(os.Stderr, loud(err))
		}
	}()
}

// died says which shared servers have ended by themselves.
func died() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	var errs []error
	for _, s := range shared.servers {
		errs = append(errs, s.Died())
	}
	return errors.Join(errs...)
}

// loud is a message that is seen between those of tests.
func loud(err error) string {
	return fmt.Sprintf("\n!!!! testenv: a server that the tests share is gone, and tests fail for it:\n%v\n!!!!\n\n", err)
}

// mustLive fails the test if the server has ended by itself, now or by the
// test's end.
func mustLive(t testing.TB, s server) {
	t.Helper()
	if err := s.Died(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Died(); err != nil {
			t.Error(err)
		}
	})
}

// get returns a shared value, or fails the test with the reason why there is
// none.
func get[T any](t testing.TB, value func() (T, error)) T {
	t.Helper()
	shared.mu.Lock()
	inMain := shared.inMain
	shared.mu.Unlock()
	if !inMain {
		t.Fatal("these tests need `func TestMain(m *testing.M) { testenv.Main(m) }` in their package")
	}
	v, err := value()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var mariaDB = sync.OnceValues(func() (*devenv.MariaDB, error) {
	dir, err := dir()
	if err != nil {
		return nil, err
	}
	db, err := devenv.StartMariaDB(context.Background(), devenv.MariaDBOptions{Dir: filepath.Join(dir, "mariadb"), NoSync: true})
	if err == nil {
		share(db)
	}
	return db, err
})

var temporal = sync.OnceValues(func() (*devenv.Temporal, error) {
	server, err := devenv.StartTemporal(context.Background(), devenv.TemporalOptions{Headless: true})
	if err == nil {
		share(server)
	}
	return server, err
})

// count numbers databases and namespaces.
var count atomic.Int64

// MariaDB returns the data source name of a fresh, empty database on the
// process's server. The database is dropped when the test ends, after the
// test's own clean-up; a transaction still open then fails the test.
func MariaDB(t testing.TB) string {
	t.Helper()
	db := get(t, mariaDB)
	mustLive(t, db)
	name := fmt.Sprintf("test_%d", count.Add(1))
	if err := db.CreateDatabase(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := db.DropDatabase(ctx, name); err != nil {
			t.Errorf("does the test leave a transaction open? %v", err)
		}
	})
	return db.DSN(name)
}

// OwnMariaDB starts a server for this test alone, which the test may stop,
// kill and start. It is gone when the test ends; one that ends by itself fails
// the test.
func OwnMariaDB(t testing.TB) *devenv.MariaDB {
	t.Helper()
	db, err := devenv.StartMariaDB(t.Context(), devenv.MariaDBOptions{Dir: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	killAtCleanup(t, db)
	return db
}

// Temporal returns the address of the process's dev server and the name of a
// fresh namespace on it, which has refundgate's search attributes. Namespaces
// have their own task queues and workflow ids, so tests don't meet.
func Temporal(t testing.TB) (hostPort, namespace string) {
	t.Helper()
	server := get(t, temporal)
	mustLive(t, server)
	namespace = fmt.Sprintf("test-%d", count.Add(1))
	if err := server.CreateNamespace(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	return server.HostPort(), namespace
}

// OwnTemporal starts a dev server for this test alone, which the test may
// stop, kill and start: its state is kept in a file. It is gone when the test
// ends; one that ends by itself fails the test. Its namespace is devenv.DefaultNamespace.
func OwnTemporal(t testing.TB) *devenv.Temporal {
	t.Helper()
	server, err := devenv.StartTemporal(t.Context(), devenv.TemporalOptions{
		DBFile:   filepath.Join(t.TempDir(), "temporal.db"),
		Headless: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	killAtCleanup(t, server)
	return server
}

func killAtCleanup(t testing.TB, s server) {
	t.Cleanup(func() {
		if err := s.Died(); err != nil {
			t.Error(err)
		}
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	})
}
