package kube

// Object names an object of the cluster. Namespace is empty for those that are in none.
type Object struct {
	Kind      string
	Namespace string
	Name      string
}

// String returns "Kind namespace/name".
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}
