package live

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// thread is one operating system thread that enters namespaces: what must be made inside one (sockets, sysctls) runs there.
type thread struct {
	work chan func()
	home *os.File
	done chan struct{}
}

func newThread() (*thread, error) {
	t := &thread{work: make(chan func()), done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and its namespace with it.
		runtime.LockOSThread()
		defer close(t.done)
		var err error
		t.home, err = os.Open("/proc/thread-self/ns/net")
		started <- err
		if err != nil {
			return
		}
		for f := range t.work {
			f()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("this thread's namespace: %w", err)
	}
	return t, nil
}

// do runs f on the thread and returns its error.
func (t *thread) do(f func() error) error {
	res := make(chan error, 1)
	t.work <- func() { res <- f() }
	return <-res
}

// enterNew makes a namespace and enters it; for use inside do.
func (t *thread) enterNew() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w (root is needed)", err)
	}
	return nil
}

// goHome enters the namespace in which the thread began; for use inside do.
func (t *thread) goHome() error {
	if err := unix.Setns(int(t.home.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the home namespace: %w", err)
	}
	return nil
}

// stop ends the thread.
func (t *thread) stop() error {
	close(t.work)
	<-t.done
	return t.home.Close()
}
