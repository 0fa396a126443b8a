// Command vcenter is the lab's vCenter: VMware's own simulator for the types
// and the wire format, with the behaviour of a vCenter around host maintenance.
// See the README.
package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "vcenter:", err)
		os.Exit(1)
	}
}

func run() error {
	specFile := flag.String("spec", "", "JSON `file` with the inventory")
	listen := flag.String("listen", "127.0.0.1:0", "loopback `address` of the SDK; port 0 takes a free one")
	cert := flag.String("tls-cert", "", "PEM `file` with the certificate chain, leaf first; without it the SDK is plain HTTP")
	key := flag.String("tls-key", "", "PEM `file` with the leaf's key")
	user := flag.String("user", "administrator@vsphere.local", "the user who may log in")
	password := flag.String("password", "secret", "that user's password")
	collector := flag.String("collector", "simulator", "whose property collector answers: `own` or simulator")
	verbose := flag.Bool("v", false, "write the simulator's log to stderr")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if *specFile == "" {
		return fmt.Errorf("-spec is required")
	}
	if !*verbose {
		// The simulator logs each call for an object that does not exist,
		// which scenarios do on purpose.
		log.SetOutput(io.Discard)
	}
	spec, err := readSpec(*specFile)
	if err != nil {
		return fmt.Errorf("-spec: %w", err)
	}
	switch *collector {
	case "own":
		spec.OwnCollectors = true
	case "simulator":
	default:
		return fmt.Errorf("-collector %q: want own or simulator", *collector)
	}
	var config *tls.Config
	if *cert != "" || *key != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			return fmt.Errorf("-tls-cert, -tls-key: %w", err)
		}
		config = &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	}
	lab, err := startLab(spec, *listen, *user, *password, config)
	if err != nil {
		return err
	}
	defer lab.close()
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"sdk": lab.server.url(), "ctl": lab.ctl}); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	// stdin reaches EOF when the process that started this one ends, in any
	// way.
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(gone)
	}()
	select {
	case <-stop:
	case <-gone:
		// The starter has ended, so it cannot remove the directory.
		if dir := os.Getenv("HAULOUT_LAB_REMOVE_AT_EOF"); dir != "" {
			defer func() { _ = os.RemoveAll(dir) }()
		}
	}
	return nil
}

// lab holds all parts of this program.
type lab struct {
	v       *VCenter
	server  *Server
	ctl     string
	control *http.Server
}

func startLab(spec *Spec, listen, user, password string, config *tls.Config) (*lab, error) {
	if err := mustBeLoopback(listen); err != nil {
		return nil, err
	}
	v, err := newVCenter(spec)
	if err != nil {
		return nil, err
	}
	server, err := newServer(v, listen, user, password, config)
	if err != nil {
		v.close()
		return nil, err
	}
	l := &lab{v: v, server: server}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.close()
		return nil, err
	}
	l.ctl = "http://" + listener.Addr().String()
	l.control = &http.Server{Handler: (&Control{v: v, server: server}).handler()}
	go func() { _ = l.control.Serve(listener) }()
	return l, nil
}

func (l *lab) close() {
	if l.control != nil {
		_ = l.control.Close()
	}
	l.server.stop()
	l.v.close()
}
