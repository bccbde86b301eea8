// Package jointoken reads and makes the tokens that hosts join a k3s cluster with.
//
// Contract: a token is a password alone, or the password in full form, which pins the cluster (k3s v1.36):
//
//	K10<sha256 of the servers' certificate authority, in hex>::<user>:<password>
//
// The user is "server" in the servers' token and "node" in the agents'. k3s goes by the password: who has the
// servers' joins as a server, and can read the keys of all certificate authorities from the datastore. With the
// agents' own password a host joins as an agent, and as nothing else.
//
// All functions are pure, but for [New].
package jointoken

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"strings"
)

// New makes a password: 32 random bytes in hex.
func New() string {
	b := make([]byte, 32)
	// It never fails: see the documentation of crypto/rand.
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// Password is the password of a token in either form; "" of none.
func Password(token string) string {
	_, credentials, full := strings.Cut(token, "::")
	if !full {
		return token
	}
	_, password, _ := strings.Cut(credentials, ":")
	return password
}

// ForAgent is the full token of an agent, made from the servers' full token, which names the cluster, and the
// agents' password.
func ForAgent(servers, password string) (string, error) {
	return inFull(servers, "node", password)
}

// inFull is a full token of the cluster that another full token names.
func inFull(other, user, password string) (string, error) {
	ca, _, full := strings.Cut(other, "::")
	if !full || password == "" {
		return "", errors.New("the servers' token does not name the cluster's certificate authority")
	}
	return ca + "::" + user + ":" + password, nil
}

// AgentsOwn is the password in what k3s calls a server's agent-token, when that is one of agents alone; "" when it is
// the servers' token, which k3s lets agents join with as long as they have none of their own.
func AgentsOwn(agentToken string) string {
	_, password, _ := strings.Cut(agentToken, "::node:")
	return password
}

// ForServer is the full token of a server that joins others, made from their full token and the servers' password.
func ForServer(servers, password string) (string, error) {
	return inFull(servers, "server", password)
}

// Host is what a host has of tokens, as its files say; "" where there is none.
type Host struct {
	// Own is what it joins with.
	Own string
	// Agents is the password that a server lets agents join with.
	Agents string
	// Staged is the servers' next token, on a server where a change of it has begun and not ended.
	Staged string
	// Exposed is there on a server when agents have had the servers' token.
	Exposed string
}

// Fault is what is wrong with the tokens of a host.
type Fault string

// Faults.
const (
	NoFault    Fault = ""
	OfServers  Fault = "of servers" // an agent has the servers' token
	Unfinished Fault = "unfinished" // the servers' token was being changed
	Exposed    Fault = "exposed"    // agents have had the servers' token
	Differs    Fault = "differs"    // a server lets agents in by another token than the others
)

// Judge says what is wrong with a host's tokens, beside the servers of its cluster.
func Judge(h Host, servers []Host, server bool) Fault {
	agents := ""
	for _, s := range servers {
		if !server && h.Own != "" && Password(h.Own) == Password(s.Own) {
			return OfServers
		}
		if agents == "" {
			agents = s.Agents
		}
	}
	switch {
	case !server || h.Own == "":
		return NoFault
	case h.Staged != "":
		return Unfinished
	case h.Exposed != "":
		return Exposed
	case h.Agents != agents:
		return Differs
	}
	return NoFault
}
