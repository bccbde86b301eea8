package preflight

import "github.com/liteboxd/boxlift/install/apt"

func judgePackages(j *judgement) {
	if j.Packages == nil {
		return
	}
	for _, f := range apt.Judge(*j.Packages) {
		severity := Error
		if f.Warning {
			severity = Warning
		}
		j.add(severity, f.Found, f.Needed, f.Hint)
	}
}
