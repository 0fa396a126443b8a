package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	vimxml "github.com/vmware/govmomi/vim25/xml"
)

// Rule makes calls fail. It applies to calls of its method (or "*") on its
// object (a name or moref; any if empty), after the first Skip of them, for
// Count of them (0: all).
type Rule struct {
	ID     int    `json:"id"`
	Method string `json:"method"`
	Object string `json:"object,omitempty"`
	// Host restricts a taskError to tasks that would put the VM on this host (a
	// name or moref): PowerOnVM_Task the host on which the VM would start,
	// RelocateVM_Task the destination, PowerOnMultiVM_Task the host that DRS
	// chose for a VM, which is then listed as not attempted. For the other kinds
	// the host must be named in the call.
	Host string `json:"host,omitempty"`
	// Kind is one of:
	//   status     respond with Status, ContentType and Body, not with SOAP
	//   http503    status 503 with an empty body
	//   htmlPage   status 200 with an HTML page, as a login portal would
	//   reset      cut the connection before anything is done
	//   loseReply  do it, then cut the connection
	//   delay      wait DelayMs, then do it
	//   hang       never respond, or cut the connection after DelayMs
	//   soapFault  respond with Fault
	//   taskError  start a task that fails with Fault after DelayMs
	//   taskResult set this result for a successful task without a result
	//   checkError, checkWarning
	//              put Fault into the result of CheckRelocate_Task
	Kind        string `json:"kind"`
	Fault       string `json:"fault,omitempty"`
	Message     string `json:"message,omitempty"`
	Skip        int    `json:"skip,omitempty"`
	Count       int    `json:"count,omitempty"`
	DelayMs     int    `json:"delayMs,omitempty"`
	Status      int    `json:"status,omitempty"`
	ContentType string `json:"contentType,omitempty"`
	Body        string `json:"body,omitempty"`
	ResultSpec
	// Hits counts how often the rule was applied.
	Hits int `json:"hits"`

	met int
}

var ruleKinds = []string{"status", "http503", "htmlPage", "reset", "loseReply", "delay", "hang", "soapFault", "taskError", "taskResult", "checkError", "checkWarning"}

// Faults holds the rules. Its mutex is a leaf lock: nothing is called while it
// is held.
type Faults struct {
	v     *VCenter
	mu    sync.Mutex
	rules []*Rule
	next  int
}

func newFaults(v *VCenter) *Faults { return &Faults{v: v} }

func (f *Faults) add(r Rule) (Rule, error) {
	if r.Method == "" {
		r.Method = "*"
	}
	if !slices.Contains(ruleKinds, r.Kind) {
		return r, fmt.Errorf("kind %q: want one of %s", r.Kind, strings.Join(ruleKinds, ", "))
	}
	if err := r.check(); err != nil {
		return r, err
	}
	if slices.Contains([]string{"soapFault", "taskError", "checkError", "checkWarning"}, r.Kind) {
		if _, err := makeFault(r.Fault); err != nil {
			return r, err
		}
	}
	switch r.Kind {
	case "http503":
		r.Status = http.StatusServiceUnavailable
	case "htmlPage":
		if r.Status == 0 {
			r.Status = http.StatusOK
		}
		if r.Body == "" {
			r.Body = "<!DOCTYPE html><html><head><title>Sign in</title></head><body><p>Please sign in.</p></body></html>"
		}
		if r.ContentType == "" {
			r.ContentType = "text/html; charset=utf-8"
		}
	case "status":
		if r.Status == 0 {
			r.Status = http.StatusOK
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	r.ID, r.Hits, r.met = f.next, 0, 0
	f.rules = append(f.rules, &r)
	return r, nil
}

func (f *Faults) remove(id int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.rules)
	f.rules = slices.DeleteFunc(f.rules, func(r *Rule) bool { return r.ID == id })
	return len(f.rules) < n
}

func (f *Faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

func (f *Faults) list() []Rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := []Rule{}
	for _, r := range f.rules {
		list = append(list, *r)
	}
	return list
}

// moment is when a rule is applied.
type moment int

const (
	ofCall moment = iota
	ofTask
	ofResult
	ofCheckError
	ofCheckWarning
)

func (r *Rule) moment() moment {
	switch r.Kind {
	case "taskError":
		return ofTask
	case "taskResult":
		return ofResult
	case "checkError":
		return ofCheckError
	case "checkWarning":
		return ofCheckWarning
	}
	return ofCall
}

// attempt is what a rule is compared with.
type attempt struct {
	method string
	// names are the objects of the call or task.
	names []string
	// hosts are those on which it would put a VM.
	hosts []string
	of    moment
	// part is true for one VM of a task with several VMs: a rule must name the
	// VM or the host.
	part bool
}

// match finds the first rule that applies and counts it.
func (f *Faults) match(a attempt) *Rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.moment() != a.of || r.Method != "*" && r.Method != a.method {
			continue
		}
		if r.Object != "" && !slices.Contains(a.names, r.Object) || r.Host != "" && !slices.Contains(a.hosts, r.Host) {
			continue
		}
		if a.part && r.Object == "" && r.Host == "" {
			continue
		}
		r.met++
		if r.met <= r.Skip || r.Count > 0 && r.Hits >= r.Count {
			continue
		}
		r.Hits++
		hit := *r
		return &hit
	}
	return nil
}

// taskError returns whether a task that is about to start fails, and after how
// many milliseconds. target is the host on which it would put its VM; nil for
// none.
func (f *Faults) taskError(method string, ref types.ManagedObjectReference, name string, target *host) (types.BaseMethodFault, int) {
	return f.taskFault(attempt{method: method, names: []string{ref.Value, name}, hosts: hostNames(target), of: ofTask}, name)
}

// placementError is the same for one VM of PowerOnMultiVM_Task.
func (f *Faults) placementError(g *guest, target *host) types.BaseMethodFault {
	fault, _ := f.taskFault(attempt{
		method: "PowerOnMultiVM_Task", names: []string{g.Self.Value, g.Name}, hosts: hostNames(target), of: ofTask, part: true,
	}, g.Name)
	return fault
}

func (f *Faults) taskFault(a attempt, name string) (types.BaseMethodFault, int) {
	r := f.match(a)
	if r == nil {
		return nil, 0
	}
	fault, err := makeFault(r.Fault)
	if err != nil {
		return nil, 0
	}
	f.record(r, a.method, name)
	return fault, r.DelayMs
}

// taskResult is the result that a rule sets for a successful task.
func (f *Faults) taskResult(t *simulator.Task) any {
	r := f.match(attempt{method: t.Info.Name, names: []string{t.Info.Entity.Value, t.Info.EntityName}, of: ofResult})
	if r == nil {
		return nil
	}
	f.record(r, t.Info.Name, t.Info.EntityName)
	return r.value()
}

func hostNames(h *host) []string {
	if h == nil {
		return nil
	}
	return []string{h.Self.Value, h.Name}
}

func (f *Faults) record(r *Rule, method, object string) {
	f.v.journal.add(Entry{Kind: "fault", Method: method, Object: object, Detail: strings.TrimSpace(r.Kind + " " + r.Fault)})
}

// makeFault makes an empty fault of a type of the API.
func makeFault(name string) (types.BaseMethodFault, error) {
	if name == "" {
		name = "SystemError"
	}
	kind, ok := types.TypeFunc()(name)
	if !ok {
		return nil, fmt.Errorf("fault %q: no such type in the API", name)
	}
	fault, ok := reflect.New(kind).Interface().(types.BaseMethodFault)
	if !ok {
		return nil, fmt.Errorf("fault %q: that type is no fault", name)
	}
	return fault, nil
}

// call is what the middleware reads of a request.
type call struct {
	method string
	this   types.ManagedObjectReference
	// names are the references in the body and the names of their objects.
	names []string
}

// parseCall reads the method and the references from a SOAP body.
func (v *VCenter) parseCall(body []byte) call {
	var c call
	d := xml.NewDecoder(bytes.NewReader(body))
	inBody, kind, text := false, "", ""
	for {
		token, err := d.Token()
		if err != nil {
			return c
		}
		switch t := token.(type) {
		case xml.StartElement:
			switch {
			case t.Name.Local == "Body":
				inBody = true
			case inBody && c.method == "":
				c.method = t.Name.Local
			}
			kind, text = "", ""
			for _, a := range t.Attr {
				if a.Name.Local == "type" && a.Name.Space == "" {
					kind = a.Value
				}
			}
		case xml.CharData:
			text += string(t)
		case xml.EndElement:
			if kind != "" {
				ref := types.ManagedObjectReference{Type: kind, Value: strings.TrimSpace(text)}
				if t.Name.Local == "_this" {
					c.this = ref
				}
				c.names = append(c.names, ref.Value, v.nameOf(ref))
			}
			kind = ""
		}
	}
}

// reply buffers a response until it is decided whether it is sent.
type reply struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *reply) Header() http.Header         { return r.header }
func (r *reply) WriteHeader(status int)      { r.status = status }
func (r *reply) Write(b []byte) (int, error) { return r.body.Write(b) }

// ServeHTTP handles calls before the SDK does.
func (f *Faults) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 16<<20))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.v.traffic.begins(req.UserAgent(), len(body))
	c := f.v.parseCall(body)
	req.Body = io.NopCloser(bytes.NewReader(body))
	lose := false
	if r := f.match(attempt{method: c.method, names: c.names, hosts: c.names}); r != nil {
		f.record(r, c.method, f.v.nameOf(c.this))
		if lose = r.Kind == "loseReply"; !lose && !f.strike(r, w, req) {
			return
		}
	}
	out := &reply{header: http.Header{}, status: http.StatusOK}
	f.dispatch(out, req, c)
	if lose {
		cut(w)
		return
	}
	answer := out.body.Bytes()
	if out.status == http.StatusInternalServerError {
		answer = speak(answer)
	}
	f.v.traffic.answered(req.UserAgent(), len(answer))
	for k, values := range out.header {
		w.Header()[k] = values
	}
	w.Header().Set("Content-Type", "text/xml; charset=utf-8")
	w.WriteHeader(out.status)
	_, _ = w.Write(answer)
}

// dispatch hands a call to the simulator, and ends its wait if the client
// closes the connection.
func (f *Faults) dispatch(w http.ResponseWriter, req *http.Request, c call) {
	if strings.HasPrefix(c.method, "WaitForUpdates") {
		if cookie, err := req.Cookie(soap.SessionCookieName); err == nil {
			answered := make(chan struct{})
			left := make(chan struct{})
			go func() {
				defer close(left)
				select {
				case <-answered:
				case <-req.Context().Done():
					f.v.sessions.cancelWait(cookie.Value, c.this)
				}
			}()
			defer func() { close(answered); <-left }()
		}
	}
	f.v.model.Service.ServeSDK(w, req)
}

// strike applies a rule; true means that the call continues.
func (f *Faults) strike(r *Rule, w http.ResponseWriter, req *http.Request) bool {
	switch r.Kind {
	case "status", "http503", "htmlPage":
		if r.ContentType != "" {
			w.Header().Set("Content-Type", r.ContentType)
		}
		w.WriteHeader(r.Status)
		_, _ = io.WriteString(w, r.Body)
	case "reset":
		cut(w)
	case "delay":
		select {
		case <-time.After(time.Duration(r.DelayMs) * time.Millisecond):
			return true
		case <-req.Context().Done():
		}
	case "hang":
		var end <-chan time.Time
		if r.DelayMs > 0 {
			end = time.After(time.Duration(r.DelayMs) * time.Millisecond)
		}
		select {
		case <-end:
			cut(w)
		case <-req.Context().Done():
		}
	case "soapFault":
		fault, err := makeFault(r.Fault)
		if err != nil {
			return true
		}
		text := r.Message
		if text == "" {
			text = message(fault)
		}
		w.Header().Set("Content-Type", "text/xml; charset=utf-8")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(envelope(fault, text))
	}
	return false
}

// envelope writes a SOAP fault in the form of a vCenter.
func envelope(fault types.BaseMethodFault, text string) []byte {
	name := faultName(fault)
	var detail, faultstring bytes.Buffer
	_ = vimxml.NewEncoder(&detail).EncodeElement(fault, vimxml.StartElement{
		Name: vimxml.Name{Local: name + "Fault"},
		Attr: []vimxml.Attr{
			{Name: vimxml.Name{Local: "xmlns"}, Value: "urn:vim25"},
			{Name: vimxml.Name{Local: "xsi:type"}, Value: name},
		},
	})
	_ = xml.EscapeText(&faultstring, []byte(text))
	return fmt.Appendf(nil, `<?xml version="1.0" encoding="UTF-8"?>
<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/" xmlns:xsd="http://www.w3.org/2001/XMLSchema" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
<soapenv:Body><soapenv:Fault><faultcode>ServerFaultCode</faultcode><faultstring>%s</faultstring><detail>%s</detail></soapenv:Fault></soapenv:Body>
</soapenv:Envelope>`, faultstring.String(), detail.String())
}

// speak fills the empty faultstring of the simulator's faults.
func speak(answer []byte) []byte {
	empty := []byte("<faultstring></faultstring>")
	if !bytes.Contains(answer, empty) {
		return answer
	}
	_, rest, ok := bytes.Cut(answer, []byte(`xsi:type="`))
	if !ok {
		return answer
	}
	name, _, ok := bytes.Cut(rest, []byte(`"`))
	text, known := messages[string(name)]
	if !ok || !known {
		return answer
	}
	return bytes.Replace(answer, empty, []byte("<faultstring>"+text+"</faultstring>"), 1)
}

// cut closes a connection under the client, with a reset where the transport
// can do that.
func cut(w http.ResponseWriter) {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	conn, _, err := hijacker.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	reset(conn)
}
