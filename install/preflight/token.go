package preflight

import "github.com/liteboxd/boxlift/install/jointoken"

func judgeToken(j *judgement) {
	if f, ok := TokenFinding(j.TokenFault); ok {
		j.warn(f.Found, f.Needed, f.Hint)
	}
}

// TokenFinding is what there is to say of a fault, of whichever host; it is not there for none.
func TokenFinding(fault jointoken.Fault) (f Finding, ok bool) {
	switch fault {
	case jointoken.OfServers:
		f.Found = "the agent has the servers' token: who is root there can join as a server, and reads the cluster's " +
			"keys"
		f.Needed = "a token of agents alone"
		f.Hint = "run `boxlift upgrade`, which may be to the bundle that the cluster runs: " +
			"it gives agents a token of their own, and the servers another one"
	case jointoken.Unfinished:
		f.Found, f.Needed = "a change of the servers' token was broken off", "one that has come to its end"
		f.Hint = "run `boxlift token rotate --servers`, which goes on with it"
	case jointoken.Exposed:
		f.Found, f.Needed = "agents have had the servers' token", "another one"
		f.Hint = "run `boxlift token rotate --servers`"
	case jointoken.Differs:
		f.Found = "the server lets agents in by another token than the others"
		f.Needed, f.Hint = "the same one on all servers", "run `boxlift install`, which gives it theirs"
	case jointoken.NoFault:
		return f, false
	}
	return f, true
}
