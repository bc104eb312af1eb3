"""same"""

import torch
import torch.multiprocessing as mp

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
X, Y = torch.rand(2, 5, 3), torch.rand(2, 5, 1)


queue = mp.Queue()


def work(net, x, y):
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    ((net(x) - y) ** 2).mean().backward()
    own.step()
    queue.put({name: value.numpy() for name, value in net.state_dict().items()})


states = []
for x, y in zip(X, Y, strict=False):
    process = mp.Process(target=work, args=(net, x, y))
    process.start()
    states.append(queue.get())
    process.join()
net.load_state_dict({n: torch.as_tensor(states[0][n] + states[1][n]) / 2 for n in states[0]})
