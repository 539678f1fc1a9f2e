//go:build !linux

package drill

import "time"

// awaitStop gives the process's threads time to stop, where the kernel doesn't
// report it.
func awaitStop(int) error {
	time.Sleep(100 * time.Millisecond)
	return nil
}
