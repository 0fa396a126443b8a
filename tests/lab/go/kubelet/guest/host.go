package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// machine is a VM as its host sees it.
type machine struct {
	config   *Config
	path     string
	settings Settings
	// init is the first process of the guest, nil while the VM is off.
	init *exec.Cmd
	// console takes commands for the guest.
	console *os.File
	// ended gets what the end of a guest was.
	ended chan error
}

// host runs a VM: commands are lines on stdin, and what happens by itself is
// told on stdout. When stdin ends, the VM is cut off and everything that it has
// made is removed, so that nothing is left of a test that was killed.
func host(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: guest host CONFIG")
	}
	config, err := readConfig(args[0])
	if err != nil {
		return err
	}
	// Whoever listens to what happens may end before the VM is removed.
	signal.Ignore(syscall.SIGPIPE)
	if err := config.Network.connectMachine(filepath.Join(config.Dir, "root")); err != nil {
		return err
	}
	m := &machine{config: config, path: args[0]}
	commands := make(chan Command)
	go func() {
		defer close(commands)
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			var c Command
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				fmt.Fprintf(os.Stderr, "guest: command %q: %v\n", lines.Text(), err)
				continue
			}
			commands <- c
		}
	}()
	for {
		select {
		case c, ok := <-commands:
			if !ok {
				return m.remove()
			}
			if err := m.do(c); err != nil {
				tell("failed", err.Error())
			}
		case end := <-m.ended:
			m.clear()
			tell("off", fmt.Sprint(end))
		}
	}
}

// tell writes an event. Nobody may listen any more.
func tell(event, detail string) {
	_ = json.NewEncoder(os.Stdout).Encode(map[string]string{"event": event, "detail": detail})
}

func (m *machine) do(c Command) error {
	if c.Settings != nil {
		m.settings = *c.Settings
	}
	switch c.Do {
	case "on":
		m.cut()
		if err := m.start(); err != nil {
			return err
		}
		tell("on", "")
		return nil
	case "off":
		m.cut()
		tell("cut", "")
		return nil
	case "set", "shutdown":
		return m.send(c)
	}
	return fmt.Errorf("unknown command %q", c.Do)
}

// start boots the guest.
func (m *machine) start() error {
	// With the groups of the last boot, the kubelet waits for containers that
	// are not there.
	if err := removeGroups(m.config.Groups); err != nil {
		return err
	}
	if m.settings.LosesCheckpoint {
		if err := os.RemoveAll(filepath.Join(m.config.Dir, "root/var/lib/kubelet/device-plugins")); err != nil {
			return err
		}
	}
	if err := makeGroups(m.config.Groups); err != nil {
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reader.Close()
	log, err := os.OpenFile(filepath.Join(m.config.Dir, "console.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		writer.Close()
		return err
	}
	defer log.Close()
	init := exec.Command("/proc/self/exe", "boot", m.path)
	init.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	init.Stdin, init.Stdout, init.Stderr = reader, log, log
	init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWNET,
		// The guest ends with its host, also if that is killed.
		Pdeathsig: syscall.SIGKILL,
		Setpgid:   true,
	}
	if err := init.Start(); err != nil {
		writer.Close()
		return err
	}
	m.init, m.console = init, writer
	ended := make(chan error, 1)
	m.ended = ended
	go func() { ended <- init.Wait() }()
	return m.send(Command{Do: "set"})
}

// send gives a command to the guest, with the present settings.
func (m *machine) send(c Command) error {
	if m.init == nil {
		return nil
	}
	c.Settings = &m.settings
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	// A guest that does not read is one that ends.
	_ = m.console.SetWriteDeadline(time.Now().Add(time.Second))
	_, err = m.console.Write(append(b, '\n'))
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}

// cut takes the power away: with the first process of its namespace all others
// end.
func (m *machine) cut() {
	if m.init == nil {
		return
	}
	_ = m.init.Process.Kill()
	select {
	case <-m.ended:
	case <-time.After(patience):
		// Without its host, nothing of the guest goes on.
		fmt.Fprintf(os.Stderr, "guest: a process of the guest did not end within %v of SIGKILL\n", patience)
		os.Exit(1)
	}
	m.clear()
}

// clear forgets a guest that has ended.
func (m *machine) clear() {
	m.console.Close()
	m.init, m.console, m.ended = nil, nil, nil
	if err := removeGroups(m.config.Groups); err != nil {
		fmt.Fprintf(os.Stderr, "guest: %v\n", err)
	}
}

// remove removes the VM with its folder. The name is checked, so that a mistake
// in the file removes nothing else.
func (m *machine) remove() error {
	m.cut()
	err := removeGroups(m.config.Groups)
	dir := m.config.Dir
	if filepath.IsAbs(dir) && strings.HasPrefix(filepath.Base(dir), "haulout-lab-") {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}
