package drill

import (
	"errors"

	"golang.org/x/sys/unix"
)

// awaitStop returns when the kernel reports that all of the process's threads
// are stopped.
func awaitStop(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
