package main

import (
	"log"
	"os"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
)

// busConfig is a system bus on which everything is allowed.
const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_type="method_return"/>
    <allow send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="signal"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
  </policy>
</busconfig>
`

const (
	loginPath      = dbus.ObjectPath("/org/freedesktop/login1")
	loginInterface = "org.freedesktop.login1.Manager"
)

// logind is what a kubelet with a shutdown grace period asks of systemd-logind.
type logind struct {
	bus   *dbus.Conn
	delay time.Duration

	mu sync.Mutex
	// locks are our ends of what inhibits a shutdown, since is when the last one
	// was taken.
	locks []*os.File
	since time.Time
}

// startLogind starts a system bus with logind on it.
func startLogind(delay time.Duration) (*logind, error) {
	if err := os.MkdirAll("/run/dbus", 0o755); err != nil {
		return nil, err
	}
	if _, err := start("dbus", "", "/usr/bin/dbus-daemon", "--config-file=/etc/lab/dbus.conf", "--nofork"); err != nil {
		return nil, err
	}
	l := &logind{delay: delay}
	err := waitFor("the system bus", func() bool {
		bus, err := dbus.ConnectSystemBus()
		if err == nil {
			l.bus = bus
		}
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	if err := l.bus.Export(l, loginPath, loginInterface); err != nil {
		return nil, err
	}
	if err := l.bus.Export(systemd{}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"); err != nil {
		return nil, err
	}
	delayInMicros := map[string]*prop.Prop{"InhibitDelayMaxUSec": {Value: uint64(delay.Microseconds())}}
	if _, err := prop.Export(l.bus, loginPath, prop.Map{loginInterface: delayInMicros}); err != nil {
		return nil, err
	}
	for _, name := range []string{"org.freedesktop.login1", "org.freedesktop.systemd1"} {
		if _, err := l.bus.RequestName(name, 0); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Inhibit implements the method: the shutdown waits until the caller has closed
// what it gets.
func (l *logind) Inhibit(_, _, _, _ string) (dbus.UnixFD, *dbus.Error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.locks, l.since = append(l.locks, reader), time.Now()
	fd := writer.Fd()
	// The bus sends a copy of it.
	time.AfterFunc(time.Second, func() { writer.Close() })
	return dbus.UnixFD(fd), nil
}

// forget forgets the locks of a kubelet that has ended.
func (l *logind) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lock := range l.locks {
		lock.Close()
	}
	l.locks = nil
}

// listens says whether a kubelet has taken a lock and since listens for a
// shutdown, which it does in this order.
func (l *logind) listens() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.locks) > 0 && time.Since(l.since) > 300*time.Millisecond
}

// prepareForShutdown announces the shutdown, and waits until nothing inhibits
// it, at most for the delay.
func (l *logind) prepareForShutdown() {
	// A kubelet that has just been started is not asked too early.
	if err := waitFor("the kubelet to inhibit the shutdown", l.listens); err != nil {
		log.Printf("%v", err)
	}
	if err := l.bus.Emit(loginPath, loginInterface+".PrepareForShutdown", true); err != nil {
		log.Printf("announcing the shutdown: %v", err)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	deadline := time.Now().Add(l.delay)
	for _, lock := range l.locks {
		// It ends when no process has the other end any more.
		_ = lock.SetReadDeadline(deadline)
		_, _ = lock.Read(make([]byte, 1))
	}
	log.Printf("nothing inhibits the shutdown")
}

// systemd is what a kubelet asks of it.
type systemd struct{}

// KillUnit implements the method.
func (systemd) KillUnit(string, string, int32) *dbus.Error { return nil }
