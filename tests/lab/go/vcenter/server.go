package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Server is the port of the SDK. It can be stopped and started on the same port
// with the same inventory, as a vCenter service that restarts.
type Server struct {
	v       *VCenter
	tls     *tls.Config
	handler http.Handler
	// unavailable makes it return 503 for everything, as the proxy of a
	// vCenter does while the service starts.
	unavailable atomic.Bool

	mu   sync.Mutex
	addr string
	http *http.Server
}

func newServer(v *VCenter, listen, user, password string, config *tls.Config) (*Server, error) {
	if err := mustBeLoopback(listen); err != nil {
		return nil, err
	}
	service := v.model.Service
	// The simulator accepts only the login in this URL.
	service.Listen = &url.URL{Scheme: "https", Host: listen, User: url.UserPassword(user, password)}
	// Registering maps the path to the inventory.
	service.RegisterSDK(v.reg, v.reg.Path+"/vimService")
	mux := http.NewServeMux()
	mux.Handle("POST /sdk", v.faults)
	mux.Handle("POST /sdk/vimService", v.faults)
	mux.HandleFunc("GET /sdk/vimServiceVersions.xml", serviceVersions)
	mux.HandleFunc("GET /about", service.About)
	v.serveREST(mux, user, password)
	s := &Server{v: v, tls: config, handler: mux, addr: listen}
	return s, s.start()
}

// newestVersion is the API version that clients know and that is applied.
const newestVersion = "8.0.3.0"

// serviceVersions lists the versions of a vCenter 8.0. The first one is that of a
// development build, as in a public recording of a vCenter 8.0.3.
func serviceVersions(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/xml")
	_, _ = io.WriteString(w, `<?xml version="1.0" encoding="UTF-8" ?>
<namespaces version="1.0">
 <namespace>
  <name>urn:vim25</name>
  <version>uB17F0042</version>
  <priorVersions>
   <version>`+newestVersion+`</version>
   <version>8.0.2.0</version>
   <version>8.0.1.0</version>
   <version>8.0.0.1</version>
   <version>7.0.3.0</version>
   <version>7.0.2.0</version>
   <version>7.0.1.0</version>
   <version>7.0.0.0</version>
   <version>6.7.3</version>
   <version>6.5</version>
  </priorVersions>
 </namespace>
</namespaces>
`)
}

func mustBeLoopback(listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("listen %s: only loopback addresses are served", listen)
	}
	return nil
}

func (s *Server) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	listener, err := listenSoon(s.addr)
	if err != nil {
		return err
	}
	s.addr = listener.Addr().String()
	s.http = &http.Server{
		Handler:  http.HandlerFunc(s.serve),
		ErrorLog: log.New(io.Discard, "", 0),
		// HTTP/2 is off: a vCenter uses 1.1 for SOAP clients.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	if s.tls != nil {
		listener = tls.NewListener(listener, s.tls)
	}
	go func(server *http.Server) {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Printf("sdk: %v", err)
		}
	}(s.http)
	return nil
}

// listenSoon tries for a while, because earlier connections may still be
// closing.
func listenSoon(addr string) (net.Listener, error) {
	config := net.ListenConfig{}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		listener, err := config.Listen(context.Background(), "tcp", addr)
		if err == nil || time.Now().After(deadline) {
			return listener, err
		}
	}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if s.unavailable.Load() {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "no healthy upstream")
		return
	}
	if strings.HasPrefix(strings.Trim(r.Header.Get("SOAPAction"), `"`), "urn:vim25/") {
		w.Header().Set("x-applied-soapaction", "urn:vim25/"+newestVersion)
	}
	s.handler.ServeHTTP(w, r)
}

// stop closes the port and all connections; those in a call get a reset.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		_ = s.http.Close()
	}
}

// Outage says what a restart of the service is like.
type Outage struct {
	// down is how long nothing is served.
	down time.Duration
	// with503 makes connections succeed meanwhile, with status 503.
	with503 bool
	// loseTasks ends each Enter Maintenance Mode; its host goes on by itself.
	loseTasks bool
	// refuseLogins is how long each login is InvalidLogin afterwards.
	refuseLogins time.Duration
}

// restart stops the service for a while. Sessions are lost; the inventory and,
// unless they are to be lost, running Enter Maintenance Mode tasks are kept.
func (s *Server) restart(outage Outage) error {
	s.v.journal.add(Entry{Kind: "session", Detail: "restart"})
	s.stop()
	s.v.sessions.kill(false, "restart")
	s.v.sessions.refuse(outage.down + outage.refuseLogins)
	if outage.loseTasks {
		s.v.loseTasks()
	}
	if outage.with503 {
		s.unavailable.Store(true)
		if err := s.start(); err != nil {
			return err
		}
		time.Sleep(outage.down)
		s.unavailable.Store(false)
		return nil
	}
	time.Sleep(outage.down)
	return s.start()
}

func (s *Server) url() string {
	scheme := "http"
	if s.tls != nil {
		scheme = "https"
	}
	return fmt.Sprintf("%s://%s%s", scheme, s.addr, s.v.reg.Path)
}

// reset closes a connection so that the peer sees a reset, not an end.
func reset(conn net.Conn) {
	raw := conn
	if t, ok := conn.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = raw.Close()
}
