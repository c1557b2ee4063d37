from .simulate.forecast import simulate as simulate
